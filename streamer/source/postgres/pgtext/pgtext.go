// Package pgtext turns the text that Postgres prints for a value into JSON. It is the
// one encoder of stream, backfill and snapshot, so that a value looks the same whichever
// way it came.
//
// It promises that what it appends is always one valid JSON value without blanks or line
// ends outside strings, that numbers keep every digit (and stand in exponent form where
// a reader could otherwise take them for an integer that it cannot hold), and that no
// text makes it panic. Common values cost no allocation.
//
// The caller must have set the session as the text form needs it: DateStyle ISO,
// IntervalStyle postgres, bytea_output hex, extra_float_digits at least 1. NULL is the
// caller's: it has no text.
package pgtext

import (
	"bytes"
	"unicode/utf8"
)

// Kind says how the text of a type is encoded.
type Kind uint8

// The kinds of types. Text is the zero value: whatever has no form of its own in JSON is
// a string of its text.
const (
	Text      Kind = iota // string
	Bool                  // true, false
	Int                   // integer within int64, plain digits
	Numeric               // number with all digits
	Float                 // number, the shortest that reads back the same
	JSON                  // string of the text, untouched; inside arrays the value itself
	Date                  // milliseconds from 1970 to the start of the day
	Time                  // milliseconds from midnight, microseconds cut off
	TimeTZ                // the same in UTC, wrapped into the day
	Timestamp             // milliseconds from 1970, microseconds as fraction; with or without zone
	Bytea                 // {"type":"Buffer","data":[…]}
	Array                 // JSON array, nested by dimension
)

const null = "null"

// Type says how to encode the values of one Postgres type.
type Type struct {
	OID  uint32
	Kind Kind
	// Elem is the type of the elements and Delim what stands between them; for arrays.
	Elem  *Type
	Delim byte
}

// Options are the choices left to the operator. The zero value is the peer's form.
type Options struct {
	// NonFiniteString sends NaN, the infinities, and numerics too large for a double as
	// a string of their text instead of null.
	NonFiniteString bool
	// ReplaceInvalidUTF8 puts U+FFFD in the place of bytes that are not UTF-8. Without
	// it they pass through. A database in UTF8 never has such bytes.
	ReplaceInvalidUTF8 bool
}

// Append appends the JSON of the value that Postgres prints as text. If the text is not
// one of its type it appends null and answers ok false; an array that has such elements
// is appended with null in their places and also answers false. So does a numeric that
// no double can hold, unless it may be a string.
func (o Options) Append(dst []byte, t Type, text []byte) (out []byte, ok bool) {
	if o.ReplaceInvalidUTF8 && !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	switch t.Kind {
	case Text, JSON:
		return AppendString(dst, text), true
	case Array:
		return o.appendArray(dst, t, text)
	default:
		return o.appendScalar(dst, t.Kind, text)
	}
}

func (o Options) appendScalar(dst []byte, kind Kind, text []byte) (out []byte, ok bool) {
	switch kind {
	case Bool:
		out, ok = appendBool(dst, text)
	case Int:
		out, ok = appendInt(dst, text)
	case Numeric, Float:
		return o.appendNumber(dst, text)
	case Date:
		return o.appendDate(dst, text)
	case Time:
		out, ok = appendTime(dst, text)
	case TimeTZ:
		out, ok = appendTimeTZ(dst, text)
	case Timestamp:
		return o.appendTimestamp(dst, text)
	case Bytea:
		out, ok = appendBytea(dst, text)
	default:
		return AppendString(dst, text), true
	}
	if !ok {
		return append(dst, null...), false
	}
	return out, true
}

// appendNonFinite appends what stands for a value that JSON has no number for.
func (o Options) appendNonFinite(dst, text []byte) []byte {
	if o.NonFiniteString {
		return AppendString(dst, text)
	}
	return append(dst, null...)
}

func appendBool(dst, text []byte) ([]byte, bool) {
	switch {
	case len(text) != 1:
	case text[0] == 't':
		return append(dst, "true"...), true
	case text[0] == 'f':
		return append(dst, "false"...), true
	}
	return dst, false
}
