package streamer_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every case from the field gives its right result, live and from the log.
func TestCases(t *testing.T) {
	t.Parallel()
	for _, c := range fieldCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			folder := filepath.Join(cases, c.name)
			b := newStage(t, c.publication, func(p *player) {
				require.Empty(t, p.play(t, filepath.Join(folder, "setup.sql")))
			})
			from := b.head(t)
			live := b.subscribe(t, from)
			require.Equal(t, c.refused, b.player.play(t, filepath.Join(folder, "input.sql")))
			mark := b.mark(t)
			got := live.until(t, mark)
			requireSame(t, loadFrames(t, filepath.Join(folder, "expected.jsonl")), got, "live")

			stored, err := framesOf(b.stored(t, from, live.last))
			require.NoError(t, err)
			requireSameBytes(t, got, stored, "stored")

			live.close()
			b.stop()
			b.start(t)
			requireSameBytes(t, got, b.subscribe(t, from).until(t, mark), "catch-up")
		})
	}
}
