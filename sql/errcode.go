package sql

// The SQLSTATEs of our own, class ZC; docs/errcodes.md says what each means and
// what to do. A number is never used again for anything else.
const (
	CodeNotOwner        = "ZC001" // another process owns the log, or it belongs to another history
	CodeTablesLocked    = "ZC002" // the tables could not be locked in time
	CodeResetRunning    = "ZC003" // another session is resetting or initialising the log
	CodeStandby         = "ZC004" // the server is a standby
	CodeIsolation       = "ZC005" // the transaction is not read committed
	CodeNotInitialised  = "ZC006" // nobody has configured the log yet
	CodeGap             = "ZC007" // the head is behind the expected one
	CodeAlreadyStored   = "ZC008" // the head is at or past the transaction
	CodeCondemned       = "ZC009" // this incarnation may not take the log over
	CodeInvalidArgument = "ZC010" // an argument is missing or contradicts another
	CodeNotRegistered   = "ZC011" // no such row in streamer
	CodeInvalidSlotName = "ZC012" // the slot name would not be valid
	CodeCondemnOwner    = "ZC013" // the owner can not be condemned
	CodeReplicaTooOld   = "ZC014" // the log begins past the replica
	CodeBackupBackwards = "ZC015" // a backup was reported further on before
	CodeYoungerOwner    = "ZC016" // an incarnation that registered later owns the log
	CodeTerminated      = "ZC100" // notice: a lock holder was told to end
	CodeResetDue        = "ZC101" // warning: a reset is required but not allowed
	CodeMayNotTerminate = "ZC102" // warning: a lock holder may not be ended
	CodeNotAMember      = "ZC103" // warning: the owner is no member of a streamer's role
)
