package wire

import (
	"bytes"

	"millrace/streamer/change"
)

// AppendForVersion appends a data message as a subscriber of the given version reads it.
// Below v5 each relation also gets keyColumns and replicaIdentity, taken from its
// rowKey, unless it has them. A message of an unknown form is passed through.
func AppendForVersion(dst, message []byte, tag change.Tag, version int) []byte {
	if version >= RowKeySince {
		return append(dst, message...)
	}
	switch tag {
	case change.Insert, change.Update, change.Delete, change.Truncate, change.Backfill, change.BackfillCompleted:
	default:
		return append(dst, message...)
	}
	s := scanner{text: message}
	if !s.take('[') || !s.skip() || !s.take(',') {
		return append(dst, message...)
	}
	start := len(dst)
	copied := 0 // how much of the message is in dst
	insert := func(r relation) {
		if r.columns == nil || r.old || r.end < copied {
			return
		}
		dst = append(dst, message[copied:r.end]...)
		copied = r.end
		dst = append(append(dst, `,"keyColumns":`...), r.columns...)
		if r.identity != nil {
			dst = append(append(dst, `,"replicaIdentity":`...), r.identity...)
		}
	}
	ok := s.object(func(key []byte) bool {
		switch string(key) {
		case `"relation"`:
			r, ok := s.relation()
			if ok {
				insert(r)
			}
			return ok
		case `"relations"`:
			return s.array(func() bool {
				r, ok := s.relation()
				if ok {
					insert(r)
				}
				return ok
			})
		}
		return s.skip()
	})
	if !ok {
		return append(dst[:start], message...)
	}
	return append(dst, message[copied:]...)
}

// relation is what the old form of a relation is made of.
type relation struct {
	columns  []byte // value of rowKey.columns; nil if it has none
	identity []byte // value of rowKey.type; nil if it has none
	old      bool   // the relation has keyColumns already
	end      int    // where its closing brace stands
}

func (s *scanner) relation() (relation, bool) {
	var r relation
	ok := s.object(func(key []byte) bool {
		switch string(key) {
		case `"keyColumns"`:
			r.old = true
		case `"rowKey"`:
			if s.peek() != '{' {
				return s.skip()
			}
			return s.object(func(key []byte) bool {
				s.blanks()
				start := s.at
				if !s.skip() {
					return false
				}
				switch string(key) {
				case `"columns"`:
					r.columns = s.text[start:s.at]
				case `"type"`:
					r.identity = s.text[start:s.at]
				}
				return true
			})
		}
		return s.skip()
	})
	r.end = s.at - 1
	return r, ok
}

// scanner walks over JSON text that a source has checked. It looks at structure only:
// what it cannot follow it reports, and never reads outside the text.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) blanks() {
	for s.at < len(s.text) && (s.text[s.at] == ' ' || s.text[s.at] == '\t' || s.text[s.at] == '\n' || s.text[s.at] == '\r') {
		s.at++
	}
}

// peek returns the next byte that is not blank; 0 at the end.
func (s *scanner) peek() byte {
	s.blanks()
	if s.at == len(s.text) {
		return 0
	}
	return s.text[s.at]
}

func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.at++
	return true
}

// object calls member at the value of each key, which member must step over.
func (s *scanner) object(member func(key []byte) bool) bool {
	if !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	for {
		s.blanks()
		start := s.at
		if s.peek() != '"' || !s.skip() {
			return false
		}
		key := s.text[start:s.at]
		if !s.take(':') || !member(key) {
			return false
		}
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// array calls element at each element, which it must step over.
func (s *scanner) array(element func() bool) bool {
	if !s.take('[') {
		return false
	}
	if s.take(']') {
		return true
	}
	for {
		if !element() {
			return false
		}
		if s.take(']') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// skip steps over one value of any kind, without recursion.
func (s *scanner) skip() bool {
	depth := 0
	for {
		switch c := s.peek(); c {
		case 0:
			return false
		case '{', '[':
			depth++
			s.at++
			continue
		case '}', ']':
			depth--
			s.at++
		case ',', ':':
			if depth == 0 {
				return false
			}
			s.at++
			continue
		case '"':
			if !s.skipString() {
				return false
			}
		default:
			n := bytes.IndexAny(s.text[s.at:], ",:]}[{\" \t\n\r")
			if n < 0 {
				n = len(s.text) - s.at
			}
			s.at += n
		}
		if depth <= 0 {
			return depth == 0
		}
	}
}

func (s *scanner) skipString() bool {
	for s.at++; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			return true
		}
	}
	s.at = len(s.text)
	return false
}
