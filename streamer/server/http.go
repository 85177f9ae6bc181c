package server

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/gorilla/websocket"
)

// The paths of health checks, which need no token.
const (
	rootPath      = "/"
	keepalivePath = "/keepalive"
)

// retryAfter is the Retry-After of a 503, in seconds.
const retryAfter = "1"

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	upgrade := websocket.IsWebSocketUpgrade(r)
	health := !upgrade && (r.URL.Path == rootPath || r.URL.Path == keepalivePath)
	if !health && !s.authorized(w, r) {
		return
	}
	if upgrade {
		s.upgrade(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.complain(w, http.StatusMethodNotAllowed, "method "+r.Method+" is not allowed")
		return
	}
	switch path := r.URL.Path; {
	case health:
		s.health(w, path)
	case path == "/metrics" && s.cfg.MetricsHandler != nil:
		s.cfg.MetricsHandler.ServeHTTP(w, r)
	case path == "/status" && s.cfg.Status != nil:
		s.status(w, r)
	case s.rules.IsPath(path):
		w.Header().Set("Upgrade", "websocket")
		s.complain(w, http.StatusUpgradeRequired, path+" takes websockets only")
	default:
		s.complain(w, http.StatusNotFound, "no such path: "+r.URL.EscapedPath())
	}
}

func (s *Server) health(w http.ResponseWriter, path string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	alive := s.cfg.HealthSplit && path == rootPath // it is only asked whether we live
	if !alive && s.cfg.Ready() != nil {
		w.Header().Set("Retry-After", retryAfter)
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("not ready")) // a client that is gone needs no answer
		return
	}
	_, _ = w.Write([]byte("OK"))
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	text, err := s.cfg.Status(ctx)
	if err != nil {
		s.log.WarnContext(ctx, "status could not be read", "err", err)
		s.complain(w, http.StatusServiceUnavailable, "the status could not be read: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(bytes.TrimRight(text, "\n"), '\n'))
}

// complain answers with an error and what there is instead.
func (s *Server) complain(w http.ResponseWriter, code int, what string) {
	paths := []string{rootPath, keepalivePath}
	if s.cfg.MetricsHandler != nil {
		paths = append(paths, "/metrics")
	}
	if s.cfg.Status != nil {
		paths = append(paths, "/status")
	}
	text, err := json.Marshal(map[string]any{
		"error":      what,
		"paths":      paths,
		"websockets": []string{"/replication/v{N}/changes", "/replication/v{N}/snapshot"},
	})
	if err != nil {
		http.Error(w, what, code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}

// httpLog takes what the HTTP server has to say, such as that accepting a connection did
// not work and will be tried again.
type httpLog struct{ log *slog.Logger }

func (l *httpLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("TLS handshake error")) {
		// Whoever knocks at the port can make one: a port scan, or a check that only connects.
		l.log.Debug("peer did not get through the TLS handshake", "cause", string(bytes.TrimSpace(line)))
		return len(line), nil
	}
	l.log.Warn("http server complained", "cause", string(bytes.TrimSpace(line)))
	return len(line), nil
}
