package server

import (
	"net/http"
	"strings"
	"time"

	"millrace/streamer/wire"
)

const (
	// maxRefusing bounds the requests that wait for their refusal.
	maxRefusing = 64
	// complainEvery is how often a refusal is a warning at most.
	complainEvery = time.Minute
)

// authorized says whether a request may be looked at. Otherwise it has been answered, and
// not at once: guessing shall take its time.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request) bool {
	if s.cfg.Tokens == nil {
		return true
	}
	header, query := bearer(r), wire.Token(r.URL.RawQuery)
	if s.cfg.Tokens.has(header, query) {
		return true
	}
	what := "the token is not known here"
	if header == "" && query == "" {
		what = "the token is missing: send the header Authorization: Bearer TOKEN, or the query parameter token=TOKEN"
	}
	s.refused("unauthorized")
	s.complained(r, what)
	w.Header().Set("Connection", "close")
	select {
	case s.refusing <- struct{}{}:
	default:
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, "too many requests without a known token", http.StatusTooManyRequests)
		return false
	}
	defer func() { <-s.refusing }()
	timer := time.NewTimer(s.cfg.RefusalDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	case <-s.stopping:
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, what, http.StatusUnauthorized)
	return false
}

// bearer returns the token in a request's header; empty if there is none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// complained logs a refusal: somebody has forgotten a token, or tries to guess one. The
// URL is not told, it may have a token.
func (s *Server) complained(r *http.Request, what string) {
	log := s.log.DebugContext
	now, last := time.Now().UnixNano(), s.complaint.Load()
	if (last == 0 || now-last >= int64(complainEvery)) && s.complaint.CompareAndSwap(last, now) {
		log = s.log.WarnContext
	}
	log(r.Context(), "request was refused", "cause", remoteHost(r)+": "+what)
}
