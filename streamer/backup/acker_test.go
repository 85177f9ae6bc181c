package backup_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/backup"
)

func TestAckerWithoutBackups(t *testing.T) {
	t.Parallel()
	var sent []string
	a := backup.NewAcker("01", false, func(w string) { sent = append(sent, w) })
	a.Stored("02")
	a.Stored("02") // again: nothing is sent twice
	a.BackedUp("09")
	a.Shown("04")
	a.Shown("03")
	a.Stored("05")
	require.Equal(t, []string{"02", "04", "05"}, sent)
}

func TestAckerWithBackups(t *testing.T) {
	t.Parallel()
	var sent []string
	a := backup.NewAcker("03", true, func(w string) { sent = append(sent, w) })
	a.Stored("03")
	a.Shown("04") // of what is stored nothing is backed up yet, after a reconnect too
	require.Empty(t, sent)
	a.BackedUp("02")
	require.Equal(t, []string{"02"}, sent)
	a.BackedUp("03") // nothing was published since
	require.Equal(t, []string{"02", "04"}, sent)
	a.Stored("05")
	a.Stored("06")
	require.Equal(t, []string{"02", "04"}, sent)
	a.BackedUp("05")
	require.Equal(t, []string{"02", "04", "05"}, sent)
	a.BackedUp("08") // ahead of what is stored: a replica gets it before
	require.Equal(t, []string{"02", "04", "05", "06"}, sent)
	a.Stored("07")
	a.Shown("09")
	require.Equal(t, []string{"02", "04", "05", "06", "07", "09"}, sent)
}

// Whatever comes in whatever order: what is confirmed grows, is stored, and is backed up
// but for what nothing was published in.
func TestAckerUnderAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := func(n int) string { return string(rune('a' + n)) }
		var head, shown, backedUp, last string
		a := backup.NewAcker(name(0), true, func(w string) {
			require.Greater(t, w, last)
			require.LessOrEqual(t, w, max(head, shown))
			if backedUp < head {
				require.LessOrEqual(t, w, backedUp)
			}
			last = w
		})
		head = name(0)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			w := name(rapid.IntRange(0, 20).Draw(t, "watermark"))
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				head = max(head, w)
				a.Stored(w)
			case 1:
				shown = max(shown, w)
				a.Shown(w)
			case 2:
				backedUp = max(backedUp, w)
				a.BackedUp(w)
			}
		}
		if backedUp >= head {
			require.Equal(t, max(head, shown), max(last, name(0)))
		}
	})
}
