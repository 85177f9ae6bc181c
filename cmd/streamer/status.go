package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"millrace/streamer/client"
)

// statusCommand shows the status view.
type statusCommand struct {
	ChangeDB string `name:"change-db" required:"" placeholder:"URL" help:"Connection string of the database that holds the change log."`
	shardFlags
	JSON bool `name:"json" help:"Print one JSON object, with the columns of the view as keys."`
}

// Validate is called by the flag library.
func (c *statusCommand) Validate() error {
	if _, err := parseDatabase("--change-db", c.ChangeDB); err != nil {
		return err
	}
	return c.shardFlags.Validate()
}

// Run prints the status.
func (c *statusCommand) Run(ctx context.Context, _ *slog.Logger) error {
	config, err := parseDatabase("--change-db", c.ChangeDB)
	if err != nil {
		return err
	}
	row, err := client.ReadStatus(ctx, config, c.schema())
	if err != nil {
		return fmt.Errorf("read the status: %w", c.explain(err))
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(row)
	}
	at := func(watermark string, t *time.Time) string {
		if t == nil {
			return cmp.Or(watermark, "-")
		}
		return watermark + " at " + t.Format(time.RFC3339)
	}
	reset := "no"
	if row.ResetRequired {
		reset = "yes: the log cannot go on; streamer serve --auto-reset begins a new one"
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"schema", row.Schema},
		{"owner", cmp.Or(row.Owner, "nobody") + stopped(row.OwnerState)},
		{"address", cmp.Or(row.OwnerAddress, "-")},
		{"slot", cmp.Or(row.Slot, "-")},
		{"replica version", cmp.Or(row.ReplicaVersion, "- (not initialised: run streamer serve)")},
		{"publications", cmp.Or(strings.Join(row.Publications, ", "), "-")},
		{"reset required", reset},
		{"head", cmp.Or(row.Head, "-")},
		{"minimum", cmp.Or(row.Minimum, "-")},
		{"streamed", at(row.StreamedWatermark, row.StreamedAt)},
		{"backed up", at(row.BackupWatermark, row.BackupAt)},
		{"floor", floor(row.FloorWatermark, row.FloorHolder)},
		{"reservations", reservations(row.NumReservations, row.ReservedAt)},
		{"rows", "about " + strconv.FormatInt(row.NumRows, 10)},
		{"size", strconv.FormatInt(row.NumBytes, 10) + " bytes"},
		{"streamers", strconv.FormatInt(row.NumStreamers, 10)},
		{"backfilling", strconv.FormatInt(row.NumBackfilling, 10) + " columns"},
	} {
		if _, err := fmt.Fprintf(table, "%s\t%s\n", line[0], line[1]); err != nil {
			return err
		}
	}
	return table.Flush()
}

// floor says up to where the log may be purged, and what holds it there.
func floor(watermark, holder string) string {
	if watermark == "" {
		return "-"
	}
	return watermark + ", held by " + holder
}

// reservations says how many subscribers are restoring, and since when.
func reservations(n int64, since *time.Time) string {
	text := strconv.FormatInt(n, 10)
	if since != nil {
		text += ", the oldest since " + since.Format(time.RFC3339)
	}
	return text
}

// stopped says that an owner runs no more.
func stopped(state string) string {
	if state == "gone" {
		return " (stopped)"
	}
	return ""
}
