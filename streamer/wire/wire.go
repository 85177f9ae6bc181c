// Package wire is the protocol between the streamer and its subscribers: paths,
// versions, parameters, frames, acks, close codes and the exact texts of refusals.
//
// It is pure: bytes and strings in, bytes, values and errors out. docs/protocol.md
// describes the same for people who write a client.
package wire

// The protocol versions that this streamer speaks. What a version changed:
//
//	v2  the first message of a valid subscription is a status
//	v3  taskID; /snapshot
//	v4  /snapshot's status has replicaVersion and minWatermark
//	v5  keyColumns and replicaIdentity of a relation moved to its rowKey; update-table-metadata
//	v6  backfill and backfill-completed
//
// Subscribers from MinVersion on are accepted unless a server is told otherwise; it
// cannot go below OldestVersion.
const (
	OldestVersion = 1
	MinVersion    = 4
	MaxVersion    = 6
)

// RowKeySince is the first version that reads a relation's rowKey; AppendForVersion does
// what the older ones need.
const RowKeySince = 5

const (
	statusSince         = 2
	taskIDRequiredSince = 4
)

// MaxFrame is the largest payload of a frame, in bytes, that every subscriber takes. A
// larger one makes it close the connection and come back to the same frame for ever [R30].
const MaxFrame = 104_857_600

// StatusMessage is the first message of a subscription: it was accepted.
const StatusMessage = `["status",{"tag":"status"}]`

// HasStatus says whether subscribers of a version know the status message.
func HasStatus(version int) bool { return version >= statusSince }
