package wire

import "bytes"

// TokenOf returns the token on a line of a file of tokens: without what is blank at its
// end. It is empty where there is none, on a blank line and on one that begins with #.
// ok is false for one that has a blank in it, or what is not ASCII.
func TokenOf(line []byte) (token []byte, ok bool) {
	token = bytes.TrimRight(line, " \t\r\n\v\f")
	if len(token) == 0 || token[0] == '#' {
		return nil, true
	}
	for _, c := range token {
		if c <= ' ' || c > '~' {
			return nil, false
		}
	}
	return token, true
}
