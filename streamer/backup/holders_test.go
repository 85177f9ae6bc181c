package backup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHolders(t *testing.T) {
	t.Parallel()
	h := NewHolders()
	now := time.Now()
	h.now = func() time.Time { return now }
	least := func(wantAt, wantName string) {
		t.Helper()
		at, name, ok := h.Min()
		require.Equal(t, wantAt != "", ok)
		require.Equal(t, [2]string{wantAt, wantName}, [2]string{at, name})
	}
	least("", "")

	slow := h.Add("slow", "03")
	quick := h.Add("quick", "04")
	refused := h.Add("refused", "01")
	least("01", "refused")
	refused.Forget()
	least("03", "slow")

	acked := "05"
	slow.Follow(func() string { return acked })
	least("04", "quick")
	acked = "06"
	quick.Follow(func() string { return "09" })
	least("06", "slow")

	slow.Leave() // where it is then, whatever its subscription says later
	acked = "08"
	least("06", "slow")
	now = now.Add(Linger)
	least("06", "slow")
	again := h.Add("slow", "06")
	now = now.Add(time.Second)
	least("06", "slow")
	again.Follow(func() string { return acked })
	least("08", "slow")
	again.Leave()
	quick.Leave()
	now = now.Add(Linger + 1)
	least("", "")
}
