package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
)

// Certificate is what the server shows of itself. It follows its files: a connection that
// begins after they have changed sees the new one, at most a second later.
type Certificate struct{ files *files[*tls.Certificate] }

// NewCertificate reads a certificate, with those that lead to its root, and its private
// key, both in PEM. A later change that cannot be used is logged, once, and changes nothing.
func NewCertificate(certificate, key string, logger *slog.Logger) (*Certificate, error) {
	c := &Certificate{files: &files[*tls.Certificate]{
		names: []string{certificate, key},
		log:   logger.With("component", "server"),
		read: func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(certificate, key)
			if err != nil {
				return nil, fmt.Errorf("read the certificate in %s and its key in %s: %w", certificate, key, err)
			}
			return &pair, nil
		},
	}}
	if err := c.files.open(); err != nil {
		return nil, err
	}
	return c, nil
}

// config is for connections that begin.
func (c *Certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}, // websockets need it
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.files.get(), nil
		},
	}
}
