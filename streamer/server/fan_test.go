package server_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/wire"
)

// The subscribers of BenchmarkFanOut are a process of their own, which is this binary
// again, so that what is measured is the server.
const (
	fanClientVariable = "MILLRACE_TEST_FAN_ADDRESS"
	fanCountVariable  = "MILLRACE_TEST_FAN_SUBSCRIBERS"
	fanFramesVariable = "MILLRACE_TEST_FAN_FRAMES"
)

// BenchmarkFanOut sends small transactions, messages of about 130 bytes on average, from
// memory to subscribers that ack every frame.
func BenchmarkFanOut(b *testing.B) {
	for _, subscribers := range []int{1, 50, 500} {
		b.Run(fmt.Sprintf("subscribers=%d", subscribers), func(b *testing.B) {
			frames := max(2_000_000/subscribers, 3000)
			cpu := time.Duration(0)
			for b.Loop() {
				cpu += fanOut(b, subscribers, frames)
			}
			total := float64(subscribers) * float64(frames) * float64(b.N)
			b.ReportMetric(total/b.Elapsed().Seconds(), "frames/s")
			b.ReportMetric(float64(cpu.Nanoseconds())/total, "cpu-ns/frame")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// TestEveryFrameReachesEverySubscriber is the benchmark's path, once and small.
func TestEveryFrameReachesEverySubscriber(t *testing.T) {
	t.Parallel()

	fanOut(t, 20, 20_000)
}

// fanOut returns the CPU time that this process, the server, took.
func fanOut(t testing.TB, subscribers, frames int) time.Duration {
	b, timed := t.(*testing.B)
	if timed {
		b.StopTimer()
	}
	r := serve(t, nil)
	client := exec.Command(os.Args[0]) //nolint:gosec // this very binary
	client.Env = append(os.Environ(), fanClientVariable+"="+r.address,
		fmt.Sprintf("%s=%d", fanCountVariable, subscribers), fmt.Sprintf("%s=%d", fanFramesVariable, frames))
	output := &strings.Builder{}
	client.Stderr = output
	ready, err := client.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, client.Start())
	_, err = bufio.NewReader(ready).ReadString('\n')
	require.NoError(t, err)
	if timed {
		b.StartTimer()
	}
	before := cpuTime(t)

	row := `{"tag":"insert","relation":{"schema":"public","name":"bench","rowKey":{"columns":["id"],"type":"default"}},` +
		`"new":{"id":123456,"v":"` + strings.Repeat("0123456789", 20) + `"}}`
	for sent, n := 1, uint64(1); sent < frames; { // the status was the first
		block := change.NewBlock(r.tail.end, 64<<10, 600)
		for range 100 {
			addTransaction(block, watermarkOf(n), row)
			n++
		}
		r.tail.publishBlock(block)
		sent += block.Len()
	}
	require.NoError(t, client.Wait(), output.String())
	used := cpuTime(t) - before
	if timed {
		b.StopTimer()
	}
	require.NoError(t, r.stop())
	require.GreaterOrEqual(t, r.metric(t, "millrace_server_acks_total"), float64(subscribers*frames))
	if timed {
		b.StartTimer()
	}
	return used
}

func cpuTime(t testing.TB) time.Duration {
	t.Helper()

	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func watermarkOf(n uint64) string { return fmt.Sprintf("5%013d", n) }

// fanClient subscribes, acks the first frames of each subscription in order, and exits.
func fanClient(address string) {
	count, _ := strconv.Atoi(os.Getenv(fanCountVariable))
	frames, _ := strconv.Atoi(os.Getenv(fanFramesVariable))
	var all sync.WaitGroup
	for range count {
		c, err := net.Dial("tcp", address)
		if err == nil {
			err = c.SetDeadline(time.Now().Add(2 * time.Minute))
		}
		if err == nil {
			in := bufio.NewReaderSize(c, 32<<10)
			err = handshake(c, in)
			all.Go(func() {
				if err := fanRead(c, in, frames); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
			})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fmt.Fprintln(os.Stdout, "ready")
	all.Wait()
}

func fanRead(c net.Conn, in *bufio.Reader, frames int) error {
	defer c.Close()
	var acks []byte
	for id := 1; id <= frames; id++ {
		if in.Buffered() < 2 && len(acks) > 0 {
			if _, err := c.Write(acks); err != nil {
				return fmt.Errorf("ack: %w", err)
			}
			acks = acks[:0]
		}
		head, err := in.Peek(2)
		if err != nil {
			return fmt.Errorf("frame %d: %w", id, err)
		}
		size, header := int(head[1]), 2
		if size == 126 {
			if head, err = in.Peek(4); err != nil {
				return fmt.Errorf("frame %d: %w", id, err)
			}
			size, header = int(binary.BigEndian.Uint16(head[2:])), 4
		}
		frame, err := in.Peek(header + 24)
		if err != nil {
			return fmt.Errorf("frame %d: %w", id, err)
		}
		if want := fmt.Sprintf(`{"id":%d,`, id); id%100 == 1 && !strings.HasPrefix(string(frame[header:]), want) {
			return fmt.Errorf("frame %d begins with %s", id, frame[header:])
		}
		if _, err := in.Discard(header + size); err != nil {
			return fmt.Errorf("frame %d: %w", id, err)
		}
		start := len(acks)
		acks = append(acks, 0x81, 0, 0, 0, 0, 0) // masked with zeros
		acks = wire.AppendAck(acks, uint64(id))  //nolint:gosec // positive
		acks[start+1] = 0x80 | byte(len(acks)-start-6)
	}
	if _, err := c.Write(acks); err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	// The server reads all of them before it comes to the end, and hangs up.
	if err := c.(*net.TCPConn).CloseWrite(); err != nil { //nolint:forcetypeassert // it was dialed so
		return fmt.Errorf("close: %w", err)
	}
	_, _ = io.Copy(io.Discard, in) // an end of any kind will do
	return nil
}
