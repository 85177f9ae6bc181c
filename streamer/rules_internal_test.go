package streamer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/changelog"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
)

// The log is complete up to K, the greater of its head and what the stream has shown. A
// slot is covered if and only if its confirmed position less one is at or below K.
func TestR3Covered(t *testing.T) {
	t.Parallel()
	const k = 1000
	tests := []struct {
		name           string
		head, streamed uint64
		confirmed      uint64
		hole           bool
	}{
		{"after an ordinary restart: confirmed is the commit and one more", k, 0, k + 1, false},
		{"a commit may start where the slot does, and it is not stored", k, 0, k + 2, true},
		{"the slot is behind", k, 0, k - 500, false},
		{"a quiet upstream was shown further than the head", k - 500, k, k + 1, false},
		{"but not that far", k - 500, k, k + 2, true},
		{"what was shown is behind the head", k, k - 500, k + 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := changelog.Start{Head: watermark.Encode(tt.head)}
			if tt.streamed > 0 {
				start.Streamed = watermark.Encode(tt.streamed)
			}
			confirmed, err := watermark.LSN(watermark.Encode(tt.confirmed))
			require.NoError(t, err)
			err = covered(start, "slot", postgres.SlotState{Exists: true, Confirmed: confirmed})
			if !tt.hole {
				require.NoError(t, err)
				return
			}
			var state *source.StateError
			require.ErrorAs(t, err, &state)
			require.Equal(t, stateHole, state.State)
		})
	}
}
