package pgtext

import "bytes"

// maxDimensions is Postgres's own limit.
const maxDimensions = 6

// appendArray appends a JSON array, nested as the text is. Bounds in front are left out.
func (o Options) appendArray(dst []byte, t Type, text []byte) (out []byte, ok bool) {
	if len(text) > 0 && text[0] == '[' {
		_, text, _ = bytes.Cut(text, []byte("="))
	}
	out, rest, ok := o.appendLevel(dst, t, text, 1)
	if len(rest) > 0 || out == nil {
		return append(dst, null...), false
	}
	return out, ok
}

// appendLevel appends what stands between one pair of braces and returns what stands
// behind them. out is nil if the text is no array at all, ok false if an element is not
// one of its type.
func (o Options) appendLevel(dst []byte, t Type, text []byte, depth int) (out, rest []byte, ok bool) {
	if len(text) < 2 || text[0] != '{' || depth > maxDimensions {
		return nil, nil, false
	}
	dst = append(dst, '[')
	text = text[1:]
	if text[0] == '}' {
		return append(dst, ']'), text[1:], true
	}
	ok = true
	for {
		var valid bool
		if len(text) > 0 && text[0] == '{' {
			dst, text, valid = o.appendLevel(dst, t, text, depth+1)
		} else {
			dst, text, valid = o.appendElement(dst, t, text)
		}
		ok = ok && valid
		if dst == nil || len(text) == 0 {
			return nil, nil, false
		}
		switch text[0] {
		case t.Delim:
			dst = append(dst, ',')
			text = text[1:]
		case '}':
			return append(dst, ']'), text[1:], ok
		default:
			return nil, nil, false
		}
	}
}

// appendElement appends the element that text starts with and returns what stands behind
// it. out is nil if there is none.
func (o Options) appendElement(dst []byte, t Type, text []byte) (out, rest []byte, ok bool) {
	if len(text) > 0 && text[0] == '"' {
		return o.appendQuoted(dst, t, text[1:])
	}
	n := 0
	for n < len(text) && text[n] != t.Delim && text[n] != '}' {
		n++
	}
	if n == 0 {
		return nil, nil, false
	}
	if element := text[:n]; !bytes.EqualFold(element, []byte("NULL")) {
		dst, ok = o.appendItem(dst, t, element)
		return dst, text[n:], ok
	}
	return append(dst, null...), text[n:], true
}

// appendQuoted appends the element that text, behind its opening quote, starts with.
func (o Options) appendQuoted(dst []byte, t Type, text []byte) (out, rest []byte, ok bool) {
	n := 0
	escaped := false
	for n < len(text) && text[n] != '"' {
		if text[n] == '\\' {
			escaped = true
			n++
		}
		n++
	}
	if n >= len(text) {
		return nil, nil, false
	}
	element, rest := text[:n], text[n+1:]
	if !escaped {
		dst, ok = o.appendItem(dst, t, element)
		return dst, rest, ok
	}
	// The element without its backslashes is put into the free space and its JSON behind
	// it, which then moves down: this needs no memory of its own.
	start := len(dst)
	for i := 0; i < len(element); i++ {
		if element[i] == '\\' {
			i++
		}
		dst = append(dst, element[i])
	}
	end := len(dst)
	dst, ok = o.appendItem(dst, t, dst[start:end])
	return append(dst[:start], dst[end:]...), rest, ok
}

// appendItem appends one element without its quotes. JSON in an array is not a string
// but the value.
func (o Options) appendItem(dst []byte, t Type, text []byte) ([]byte, bool) {
	if t.Elem == nil {
		return AppendString(dst, text), true
	}
	if t.Elem.Kind == JSON {
		return appendEmbedded(dst, text)
	}
	return o.appendScalar(dst, t.Elem.Kind, text)
}
