package server

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"millrace/streamer/wire"
)

// shortToken is what somebody could guess, at a few dozen tries a second.
const shortToken = 16

// Tokens are the secrets of those who may ask. They follow their file: a request that
// comes after it has changed meets the new ones, at most a second later.
type Tokens struct{ files *files[tokenSet] }

// tokenSet has hashes, so that comparing takes the same time whatever differs.
type tokenSet [][sha256.Size]byte

// NewTokens reads a file with a token on each line. Blank lines do not count, nor those
// that begin with #. A file without any token is an error; a later change to one is
// logged, once, and changes nothing.
func NewTokens(name string, logger *slog.Logger) (*Tokens, error) {
	logger = logger.With("component", "server")
	t := &Tokens{files: &files[tokenSet]{
		names: []string{name},
		log:   logger,
		read: func() (tokenSet, error) {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("read the tokens: %w", err)
			}
			set, short, err := parseTokens(text)
			if err != nil {
				return nil, fmt.Errorf("read the tokens in %s: %w", name, err)
			}
			if short != 0 {
				logger.Warn("found a token that can be guessed", "cause",
					fmt.Sprintf("line %d of %s has fewer than %d characters", short, name, shortToken))
			}
			return set, nil
		},
	}}
	if err := t.files.open(); err != nil {
		return nil, err
	}
	return t, nil
}

// parseTokens also returns the number of the first line whose token is short; 0: none.
func parseTokens(text []byte) (set tokenSet, short int, err error) {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		token, ok := wire.TokenOf(line)
		switch {
		case !ok:
			return nil, 0, fmt.Errorf("line %d has a blank, or what is not ASCII, in its token", number)
		case len(token) == 0:
			continue
		}
		if len(token) < shortToken && short == 0 {
			short = number
		}
		set = append(set, sha256.Sum256(token))
	}
	if len(set) == 0 {
		return nil, 0, errors.New("there is none: want one on each line; blank lines and those that begin with # do not count")
	}
	return set, short, nil
}

// has says whether one of some texts is a token.
func (t *Tokens) has(texts ...string) bool {
	set := t.files.get()
	found := 0
	for _, text := range texts {
		hash := sha256.Sum256([]byte(text))
		for i := range set {
			found |= subtle.ConstantTimeCompare(set[i][:], hash[:])
		}
	}
	return found == 1
}
