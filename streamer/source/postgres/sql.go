package postgres

import (
	_ "embed"
	"strings"
)

// What is asked of the upstream, one file each.
var (
	//go:embed slot.sql
	slotSQL string
	//go:embed create_slot.sql
	createSlotSQL string
	//go:embed create_snapshot_slot.sql
	createSnapshotSlotSQL string
	//go:embed never_time_out.sql
	neverTimeOutSQL string
	//go:embed begin_snapshot.sql
	beginSnapshotSQL string
	//go:embed published_tables.sql
	publishedTablesSQL string
	//go:embed table_columns.sql
	tableColumnsSQL string
	//go:embed table_states.sql
	tableStatesSQL string
	//go:embed table_holders.sql
	tableHoldersSQL string
	//go:embed drop_slot.sql
	dropSlotSQL string
	//go:embed start_replication.sql
	startReplicationSQL string
	//go:embed end_holder.sql
	endHolderSQL string
	//go:embed may_end_holder.sql
	mayEndHolderSQL string
	//go:embed end_walsender.sql
	endWalsenderSQL string
	//go:embed blockers.sql
	blockersSQL string
	//go:embed wal_end.sql
	walEndSQL string
	//go:embed emit_message.sql
	emitMessageSQL string
	//go:embed now.sql
	nowSQL string
	//go:embed sender_timeout.sql
	senderTimeoutSQL string
	//go:embed existing_publications.sql
	existingPublicationsSQL string
	//go:embed create_publication.sql
	createPublicationSQL string
	//go:embed set_raw.sql
	setRawSQL string
	//go:embed type.sql
	typeSQL string
	//go:embed server.sql
	serverSQL string
	//go:embed publications.sql
	publicationsSQL string
	//go:embed published_columns.sql
	publishedColumnsSQL string
	//go:embed missing_identity.sql
	missingIdentitySQL string
)

// command is a file's text as a replication command: those take no trailing newline.
func command(text string) string { return strings.TrimSpace(text) }
