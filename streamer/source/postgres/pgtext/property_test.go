package pgtext_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/source/postgres/pgtext"
)

// kinds has one type of every kind, and an array of each.
func kinds(t require.TestingT) []pgtext.Type {
	var types []pgtext.Type
	for _, oid := range []uint32{
		boolOID, byteaOID, int8OID, textOID, jsonOID, float8OID, numericOID, dateOID, timeOID, timetzOID, timestampOID,
		1000, 1001, 1016, 1009, 199, 1022, 1231, 1182, 1183, 1270, 1115, 1020,
	} {
		typ, ok := pgtext.Builtin(oid)
		require.True(t, ok)
		types = append(types, typ)
	}
	return types
}

// checkJSON fails unless out is one canonical JSON value.
func checkJSON(t require.TestingT, typ pgtext.Type, text, out []byte) {
	require.True(t, json.Valid(out), "%d %q: %q", typ.OID, text, out)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, out))
	require.Equal(t, compact.String(), string(out), "blanks outside strings")
	require.NotContains(t, string(out), "\n")
	require.NotEqual(t, "-0", string(out))
	if typ.Kind == pgtext.Array {
		require.Contains(t, "[n", string(out[:1]))
	}
}

func FuzzAppend(f *testing.F) {
	for _, s := range scalars {
		f.Add([]byte(s.text))
	}
	f.Add([]byte(`[0:1]={{"a\"b",NULL},{"{\"a\": [1, 2]}",x}}`))
	f.Add([]byte("{(1,1),(0,0);(2,2),(1,1)}"))
	f.Add([]byte(`{"\\xdead",1}`))
	types := kinds(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, typ := range types {
			for _, options := range []pgtext.Options{{}, {NonFiniteString: true, ReplaceInvalidUTF8: true}} {
				out, _ := options.Append(nil, typ, text)
				checkJSON(t, typ, text, out)
				if options.ReplaceInvalidUTF8 {
					require.True(t, utf8.Valid(out), "%d %q: %q", typ.OID, text, out)
				}
			}
		}
	})
}

func TestAnyTextBecomesValidJSON(t *testing.T) {
	t.Parallel()

	types := kinds(t)
	// Letters that mean something to one of the types come often.
	near := rapid.StringMatching(`[-+{}"\\,;:.eE0-9 BCNULtf\[\]=x\n\xff]{0,24}`)
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(rapid.OneOf(near, rapid.String()).Draw(t, "text"))
		typ := rapid.SampledFrom(types).Draw(t, "type")
		before := []byte("before")
		out, _ := pgtext.Options{}.Append(before, typ, text)
		require.True(t, bytes.HasPrefix(out, before))
		checkJSON(t, typ, text, out[len(before):])
	})
}

func TestStringsReadBackTheSame(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		runes := rapid.OneOf(rapid.RuneFrom([]rune("ab\"\\\n\x00\x1f\x7f\u2028é😀")), rapid.Rune())
		want := rapid.StringOfN(runes, 0, 64, -1).Draw(t, "text")
		var got string
		require.NoError(t, json.Unmarshal(pgtext.AppendString(nil, []byte(want)), &got))
		require.Equal(t, want, got)
	})
}

func TestNumbersKeepTheirValue(t *testing.T) {
	t.Parallel()

	numeric, _ := pgtext.Builtin(numericOID)
	limit := new(big.Rat).SetInt64(1 << 53)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.StringMatching(`-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?`),
			rapid.StringMatching(`-?90071992547409(89|9[0-9])(\.[09]{0,3}[0-9])?`),
			rapid.StringMatching(`-?[1-9](\.[0-9]{1,16})?e[-+](0[0-9]|[1-9][0-9]|[12][0-9][0-9])`),
		).Draw(t, "text")
		want, ok := new(big.Rat).SetString(text)
		require.True(t, ok)

		out, ok := pgtext.Options{}.Append(nil, numeric, []byte(text))
		require.True(t, ok)
		checkJSON(t, numeric, []byte(text), out)
		got, ok := new(big.Rat).SetString(string(out))
		require.True(t, ok)
		require.Zero(t, want.Cmp(got), "%s became %s", text, out)
		if new(big.Rat).Abs(want).Cmp(limit) >= 0 {
			require.Contains(t, string(out), "e", "readers would take it for an integer")
		}
	})
}

func TestFloatsReadBackTheSame(t *testing.T) {
	t.Parallel()

	float8, _ := pgtext.Builtin(float8OID)
	rapid.Check(t, func(t *rapid.T) {
		want := math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
		if math.IsNaN(want) || math.IsInf(want, 0) {
			return
		}
		// Exponents of two digits, as Postgres prints them.
		text := strconv.FormatFloat(want, 'e', -1, 64)
		out, ok := pgtext.Options{}.Append(nil, float8, []byte(text))
		require.True(t, ok)
		got, err := strconv.ParseFloat(string(out), 64)
		require.NoError(t, err)
		require.Equal(t, want, got) //nolint:testifylint // the very same value is meant
	})
}

func TestTimestampsAreExact(t *testing.T) {
	t.Parallel()

	timestamp, _ := pgtext.Builtin(timestampOID)
	rapid.Check(t, func(t *rapid.T) {
		// From 4713 BC to 294276.
		seconds := rapid.Int64Range(-210_866_803_200, 9_224_318_015_999).Draw(t, "seconds")
		micros := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 999_999)).Draw(t, "micros")
		at := time.Unix(seconds, micros*1000).UTC()
		year, suffix := at.Year(), ""
		if year <= 0 {
			year, suffix = 1-year, " BC"
		}
		text := fmt.Sprintf("%04d-%02d-%02d %s", year, at.Month(), at.Day(), at.Format("15:04:05"))
		if micros != 0 {
			text += strings.TrimRight(fmt.Sprintf(".%06d", micros), "0")
		}
		text += suffix

		want := new(big.Rat).SetFrac64(micros, 1000)
		want.Add(want, new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(seconds), big.NewInt(1000)), big.NewInt(1)))
		out, ok := pgtext.Options{}.Append(nil, timestamp, []byte(text))
		require.True(t, ok, text)
		got, ok := new(big.Rat).SetString(string(out))
		require.True(t, ok)
		require.Zero(t, want.Cmp(got), "%s became %s", text, out)
	})
}

// list is an array's value: a nil entry is NULL, others are strings or lists.
type list []any

func drawList(t *rapid.T, dimensions int) list {
	n := rapid.IntRange(1, 4).Draw(t, "n")
	if dimensions > 1 {
		l := make(list, n)
		for i := range l {
			l[i] = drawList(t, dimensions-1)
		}
		return l
	}
	l := make(list, n)
	runes := rapid.OneOf(rapid.RuneFrom([]rune(`ab{},"\ NUL;`)), rapid.Rune())
	for i := range l {
		if rapid.Bool().Draw(t, "null") {
			continue
		}
		l[i] = rapid.OneOf(rapid.Just("NULL"), rapid.StringOfN(runes, 0, 8, -1)).Draw(t, "text")
	}
	return l
}

// print writes a list as Postgres does. Quotes that it would leave out are harmless.
func (l list) print(b *strings.Builder, quoteAll bool) {
	b.WriteByte('{')
	for i, v := range l {
		if i > 0 {
			b.WriteByte(',')
		}
		switch v := v.(type) {
		case nil:
			b.WriteString("NULL")
		case list:
			v.print(b, quoteAll)
		case string:
			if !quoteAll && v != "" && v != "NULL" && !strings.ContainsAny(v, "{},\"\\ \t\n\v\f\r") {
				b.WriteString(v)
				continue
			}
			b.WriteString(`"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(v) + `"`)
		}
	}
	b.WriteByte('}')
}

func TestArraysReadBackTheSame(t *testing.T) {
	t.Parallel()

	array, _ := pgtext.Builtin(1009)
	rapid.Check(t, func(t *rapid.T) {
		want := drawList(t, rapid.IntRange(1, 3).Draw(t, "dimensions"))
		var text strings.Builder
		text.WriteString(rapid.SampledFrom([]string{"", "[0:1]=", "[-3:-2][1:4]="}).Draw(t, "bounds"))
		want.print(&text, rapid.Bool().Draw(t, "quote all"))

		out, ok := pgtext.Options{}.Append(nil, array, []byte(text.String()))
		require.True(t, ok, text.String())
		wantJSON, err := json.Marshal(want)
		require.NoError(t, err)
		require.JSONEq(t, string(wantJSON), string(out))
	})
}

// fewestAllocs is how often do allocates at best: what is pooled may be dropped at any time,
// and is by the race detector.
func fewestAllocs(do func()) float64 {
	fewest := testing.AllocsPerRun(10, do)
	for range 9 {
		fewest = min(fewest, testing.AllocsPerRun(10, do))
	}
	return fewest
}

//nolint:paralleltest // allocations are counted for the whole process
func TestCommonValuesCostNoMemory(t *testing.T) {
	for _, tt := range scalars {
		if tt.bad {
			continue
		}
		typ, _ := pgtext.Builtin(tt.oid)
		text := []byte(tt.text)
		dst := make([]byte, 0, 4096)
		allocs := fewestAllocs(func() {
			dst, _ = pgtext.Options{}.Append(dst[:0], typ, text)
		})
		if strings.HasPrefix(tt.name, "largest double") || strings.HasPrefix(tt.name, "largest float") ||
			strings.HasPrefix(tt.name, "numeric past doubles") {
			continue // at the very end of the range the number is read to see whether it fits
		}
		require.Zero(t, allocs, tt.name)
	}
	for oid, text := range map[uint32]string{
		1009: `{"a b",NULL,"c\"d"}`,
		3807: `{"{\"a\": [1, 2]}",NULL}`,
		1007: `{{1,2},{3,4}}`,
		1001: `{"\\xdead"}`,
	} {
		typ, _ := pgtext.Builtin(oid)
		dst := make([]byte, 0, 4096)
		require.Zero(t, fewestAllocs(func() {
			dst, _ = pgtext.Options{}.Append(dst[:0], typ, []byte(text))
		}), text)
	}
}
