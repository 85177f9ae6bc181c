package watermark_test

import (
	"bufio"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/watermark"
)

type vector struct{ kind, input, number, encoding string }

func vectors(t testing.TB) (list []vector) {
	f, err := os.Open("testdata/lexi-vectors.tsv")
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if line := lines.Text(); line != "" && line[0] != '#' {
			columns := strings.Split(line, "\t")
			require.Len(t, columns, 4, line)
			list = append(list, vector{columns[0], columns[1], columns[2], columns[3]})
		}
	}
	require.Greater(t, len(list), 50)
	return list
}

func TestVectors(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t) {
		t.Run(v.kind+" "+v.input+" "+v.number, func(t *testing.T) {
			t.Parallel()
			n, _ := new(big.Int).SetString(v.number, 10)
			switch v.kind {
			case "num":
				text, err := watermark.EncodeBig(n)
				require.NoError(t, err)
				require.Equal(t, v.encoding, text)
				back, err := watermark.Decode(text)
				require.NoError(t, err)
				require.Zero(t, n.Cmp(back))
				require.NoError(t, watermark.Check(text))
				if n.IsUint64() {
					require.Equal(t, v.encoding, watermark.Encode(n.Uint64()))
					require.Equal(t, "x"+v.encoding, string(watermark.Append([]byte("x"), n.Uint64())))
				}
			case "lsn":
				lsn, err := pglogrepl.ParseLSN(v.input)
				require.NoError(t, err)
				require.Equal(t, v.number, strconv.FormatUint(uint64(lsn), 10))
				require.Equal(t, v.encoding, watermark.FromLSN(lsn))
				for _, w := range []string{v.encoding, v.encoding + ".0z"} { // the minor part is ignored
					back, err := watermark.LSN(w)
					require.NoError(t, err)
					require.Equal(t, lsn, back)
					require.Equal(t, v.input, back.String())
				}
			case "state":
				major, minor, _ := strings.Cut(v.number, ".")
				a, err := strconv.ParseUint(major, 10, 64)
				require.NoError(t, err)
				b, err := strconv.ParseUint(minor, 10, 64)
				require.NoError(t, err)
				require.Equal(t, v.encoding, watermark.WithMinor(watermark.Encode(a), b))
				require.NoError(t, watermark.Check(v.encoding))
			case "invalid":
				require.ErrorIs(t, watermark.Check(v.input), watermark.ErrInvalid)
				_, err := watermark.Decode(v.input)
				require.ErrorIs(t, err, watermark.ErrInvalid)
				_, err = watermark.LSN(v.input)
				require.ErrorIs(t, err, watermark.ErrInvalid)
			default:
				t.Fatalf("unknown kind %q", v.kind)
			}
		})
	}
}

func TestEncodeBigRefuses(t *testing.T) {
	t.Parallel()
	over := new(big.Int).Exp(big.NewInt(36), big.NewInt(36), nil)
	for _, n := range []*big.Int{big.NewInt(-1), over} {
		_, err := watermark.EncodeBig(n)
		require.ErrorIs(t, err, watermark.ErrInvalid)
	}
	_, err := watermark.EncodeBig(new(big.Int).Sub(over, big.NewInt(1)))
	require.NoError(t, err)
}

func TestLSNRefusesWhatIsBeyondAnyLSN(t *testing.T) {
	t.Parallel()
	_, err := watermark.LSN("c3w5e11264sgsg") // 2^64
	require.ErrorIs(t, err, watermark.ErrInvalid)
}

func TestByteOrderIsOrderOfNumbers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		// Drawn by bits: evenly drawn numbers would all have as many digits.
		number := rapid.Custom(func(t *rapid.T) uint64 {
			return rapid.Uint64().Draw(t, "n") >> rapid.IntRange(0, 63).Draw(t, "bits")
		})
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		require.Equal(t, a < b, watermark.Encode(a) < watermark.Encode(b))
		require.Equal(t, a == b, watermark.Encode(a) == watermark.Encode(b))
		m, n := number.Draw(t, "m"), number.Draw(t, "n")
		v, w := watermark.WithMinor(watermark.Encode(a), m), watermark.WithMinor(watermark.Encode(b), n)
		require.Equal(t, a < b || (a == b && m < n), v < w)
		require.Less(t, watermark.Encode(a), v)
		require.NoError(t, watermark.Check(v))
	})
}

func TestStateVersionsSortByMajorThenMinor(t *testing.T) {
	t.Parallel()
	want := []string{"01", "01.00", "01.01", "01.0z", "01.110", "02", "0z", "0z.01", "110"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.Sort(got)
	require.Equal(t, want, got)
}

func TestPositionsCompare(t *testing.T) {
	t.Parallel()
	order := []watermark.Position{
		{Watermark: "01", Pos: 0},
		{Watermark: "01", Pos: 7},
		watermark.After("01"),
		watermark.After("01.01"),
		{Watermark: "02", Pos: 0},
		watermark.After("02"),
	}
	for i, p := range order {
		for j, q := range order {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			require.Equal(t, want, p.Compare(q), "%s and %s", p, q)
		}
		require.Equal(t, p.Pos == watermark.End, p.Between())
	}
	require.Equal(t, "01#7", order[1].String())
	require.Equal(t, "01", order[2].String())
}

func FuzzCheck(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.input)
		f.Add(v.encoding)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if watermark.Check(s) != nil {
			return
		}
		major, minor, dotted := strings.Cut(s, ".")
		back := decodeAndEncode(t, major)
		if dotted {
			back += "." + decodeAndEncode(t, minor)
		}
		require.Equal(t, s, back)
		require.NotContains(t, s, `"`) // Append of package change puts it into JSON as it is
	})
}

func FuzzDecode(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.input)
		f.Add(v.encoding)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := watermark.Decode(s); err == nil {
			require.Equal(t, s, decodeAndEncode(t, s))
		}
	})
}

func decodeAndEncode(t testing.TB, s string) string {
	n, err := watermark.Decode(s)
	require.NoError(t, err)
	back, err := watermark.EncodeBig(n)
	require.NoError(t, err)
	return back
}
