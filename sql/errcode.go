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
	CodeTerminated      = "ZC100" // notice, reserved: a lock holder was terminated
	CodeResetDue        = "ZC101" // warning: a reset is required but not allowed
)
