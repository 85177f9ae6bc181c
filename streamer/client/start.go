package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"millrace/streamer/watermark"
)

// ErrNoStatus says that the server has no GET /status, so that it cannot be asked for a
// start position. It wraps ErrPermanent.
var ErrNoStatus = fmt.Errorf("the server has no /status to ask for a start position: %w", ErrPermanent)

const maxStatusBytes = 1 << 20

// ParseStart reads what a person wrote as a start: a commit watermark, Head, or First.
// Nothing means Head.
func ParseStart(text string) (string, error) {
	switch text {
	case "":
		return Head, nil
	case Head, First:
		return text, nil
	}
	if err := watermark.Check(text); err != nil {
		return "", fmt.Errorf("%w, and neither %s nor %s", err, Head, First)
	}
	return text, nil
}

// resolveStart fixes the start position, once: a lost connection must not move it.
func (c *Client) resolveStart(ctx context.Context, server *url.URL, access access) error {
	if c.pos.Watermark != "" {
		return nil
	}
	start := Position{ReplicaVersion: c.cfg.ReplicaVersion, Watermark: c.cfg.Watermark}
	asks := start.Watermark == Head || start.Watermark == First
	if asks || start.ReplicaVersion == "" {
		state, err := askStatus(ctx, server, access, c.cfg.Timeout)
		if err != nil {
			return fmt.Errorf("ask %s for its status: %w", server.Host, err)
		}
		if start.ReplicaVersion == "" {
			start.ReplicaVersion = state.ReplicaVersion
		}
		switch start.Watermark {
		case Head:
			start.Watermark = state.Head
		case First:
			start.Watermark = state.Minimum
		}
	}
	c.pos = start
	if c.cfg.Resolved == nil {
		return nil
	}
	if err := c.cfg.Resolved(ctx, start); err != nil {
		return &callbackError{fmt.Errorf("note the start at watermark %s: %w", start.Watermark, err)}
	}
	return nil
}

// serverStatus is the part of GET /status that a subscriber needs.
type serverStatus struct {
	ReplicaVersion string `json:"replica_version"`
	Minimum        string `json:"minimum"`
	Head           string `json:"head"`
}

func askStatus(ctx context.Context, server *url.URL, access access, timeout time.Duration) (serverStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	target := url.URL{Scheme: "http", Host: server.Host, Path: "/status"}
	if server.Scheme == "wss" {
		target.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return serverStatus{}, err
	}
	if header := access.header(); header != nil {
		request.Header = header
	}
	// A transport of its own: no idle connection stays behind.
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: access.tls}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return serverStatus{}, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return serverStatus{}, ErrNoStatus
	case http.StatusUnauthorized:
		return serverStatus{}, unauthorized(response.Body)
	default:
		return serverStatus{}, fmt.Errorf("the server answered %s", response.Status)
	}
	var state serverStatus
	if err := json.NewDecoder(io.LimitReader(response.Body, maxStatusBytes)).Decode(&state); err != nil {
		return serverStatus{}, fmt.Errorf("read the answer: %w", err)
	}
	if state.ReplicaVersion == "" || state.Minimum == "" || state.Head == "" {
		return serverStatus{}, errors.New("the log is not initialised yet")
	}
	return state, nil
}
