package client

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"millrace/streamer/wire"
)

// ErrUnauthorized says that the server lets nobody in without a token that it knows, and
// was given none, or another one, twice. It wraps ErrPermanent.
var ErrUnauthorized = fmt.Errorf("the server lets nobody in without a token that it knows: %w", ErrPermanent)

// access is what one attempt to connect has to show, and whom it trusts.
type access struct {
	token string // none if empty
	tls   *tls.Config
}

// access is asked for anew before every attempt: files are replaced.
func (c *Client) access() (a access, err error) {
	if c.cfg.Token != nil {
		if a.token, err = c.cfg.Token(); err != nil {
			return a, fmt.Errorf("get the token: %w", err)
		}
	}
	if c.cfg.TLS != nil {
		if a.tls, err = c.cfg.TLS(); err != nil {
			return a, fmt.Errorf("get the TLS configuration: %w", err)
		}
	}
	return a, nil
}

// header has the token, if there is one.
func (a access) header() http.Header {
	if a.token == "" {
		return nil
	}
	return http.Header{"Authorization": {"Bearer " + a.token}}
}

// unauthorized says why nobody was let in.
func unauthorized(body io.Reader) error {
	return fmt.Errorf("%w (%s)", ErrUnauthorized, detail(body))
}

// detail is what a server says beside a status, for people; its absence is no error.
func detail(body io.Reader) string {
	text, _ := io.ReadAll(io.LimitReader(body, 200))
	return strings.TrimSpace(string(text))
}

// TokenFile returns a function for Config.Token that reads the first token of a file: a
// line that is not blank and does not begin with #.
func TokenFile(name string) func() (string, error) {
	return func() (string, error) {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		for line := range bytes.Lines(text) {
			token, ok := wire.TokenOf(line)
			switch {
			case !ok:
				return "", fmt.Errorf("read the token in %s: it has a blank in it, or what is not ASCII", name)
			case len(token) > 0:
				return string(token), nil
			}
		}
		return "", fmt.Errorf("read the token in %s: there is none: want one on a line of its own", name)
	}
}

// TrustFile returns a function for Config.TLS that trusts the authorities of a file, in
// PEM, and no others.
func TrustFile(name string) func() (*tls.Config, error) {
	return func() (*tls.Config, error) {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read whom to trust: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read whom to trust in %s: there is no certificate in it", name)
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, nil
	}
}
