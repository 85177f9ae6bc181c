// Package wire is the protocol between the streamer and its subscribers: paths,
// versions, parameters, frames, acks, close codes and the exact texts of refusals.
//
// It is pure: bytes and strings in, bytes, values and errors out. docs/protocol.md
// describes the same for people who write a client.
package wire

import "millrace/streamer/change"

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

const (
	statusSince         = 2
	taskIDRequiredSince = 4
	rowKeySince         = 5
	metadataSince       = 5
	backfillSince       = 6
)

// MaxFrame is the largest payload of a frame, in bytes, that every subscriber takes. A
// larger one makes it close the connection and come back to the same frame for ever [R30].
const MaxFrame = 104_857_600

// StatusMessage is the first message of a subscription: it was accepted.
const StatusMessage = `["status",{"tag":"status"}]`

// HasStatus says whether subscribers of a version know the status message.
func HasStatus(version int) bool { return version >= statusSince }

// Frames is a sequence of messages for one subscriber, numbered from FirstID on: the
// messages of Run, one frame for each, or, if Literal is not nil, that single message.
type Frames struct {
	Run     change.Run
	Literal []byte
	FirstID uint64
}

// Admit says whether a data message with this tag may be sent to a subscriber of this
// version. It is left out if not; with an error the subscriber cannot do without it and
// its connection must be closed so [H 15].
func Admit(tag change.Tag, version int) (bool, *Close) {
	switch tag {
	case change.UpdateTableMetadata:
		return version >= metadataSince, nil
	case change.Backfill, change.BackfillCompleted:
		if version < backfillSince {
			return false, &Close{Code: CloseProtocol, Reason: "Error: backfill requires protocol v6", Delay: true}
		}
	}
	return true, nil
}
