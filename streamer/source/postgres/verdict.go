package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/streamer/source"
	"millrace/streamer/source/postgres/pgoutput"
)

// verdict says what an error means that ended a stream: nil, that it is worth trying
// again, or the error that ends the process.
func (s *Source) verdict(ctx context.Context, err error) error {
	var state *source.StateError
	if errors.Is(err, source.ErrNotOwner) {
		return err
	}
	if errors.As(err, &state) {
		if refusal(err) && s.streamed {
			return nil // it worked before
		}
		return err
	}
	var large *pgoutput.TooLargeError
	if errors.As(err, &large) {
		return &source.StateError{
			State: StateMessageTooLarge, Detail: large.Error(), Err: err,
			Hint: "the row cannot be sent to anybody: make the value smaller, and start with a new replica and a new slot",
		}
	}
	switch code(err) {
	case codeUndefinedObject, codeNotInPrerequisite:
		ours, final := s.askOwner(ctx)
		if !ours { // who has the log may have dropped the slot
			return final
		}
		return s.look(ctx, err)
	case codeInsufficientPriv:
		if s.streamed {
			return nil
		}
		return s.cfg.Upstream.explain(err)
	case codeAdminShutdown:
		s.ended = true
		_, final := s.askOwner(ctx)
		return final
	case codeObjectInUse:
		if _, final := s.askOwner(ctx); final != nil {
			return final
		}
		return s.holder(ctx)
	}
	return nil
}

// look finds out what is missing: the server has one code for several things.
func (s *Source) look(ctx context.Context, cause error) error {
	var slot SlotState
	var existing []string
	err := s.session.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if slot, err = readSlot(ctx, conn, s.cfg.Slot); err != nil {
			return err
		}
		existing, err = existingPublications(ctx, conn, s.cfg.Publications)
		return err
	})
	if err != nil {
		return nil // the next attempt meets the same again
	}
	newSlot := "what was committed meanwhile cannot be had from the stream any more: make a new replica and a new slot"
	switch {
	case !slot.Exists:
		return &source.StateError{
			State: StateSlotMissing, Detail: fmt.Sprintf("replication slot %s is missing", s.cfg.Slot),
			Hint: "somebody dropped it; " + newSlot, Err: cause,
		}
	case slot.Lost:
		return &source.StateError{
			State:  StateSlotLost,
			Detail: fmt.Sprintf("replication slot %s has been invalidated for exceeding the max_slot_wal_keep_size", s.cfg.Slot),
			Hint:   newSlot, Err: cause,
		}
	case slot.Plugin != Plugin || slot.Database != s.cfg.Upstream.config.Database:
		return &source.StateError{
			State: StateSlotForeign,
			Detail: fmt.Sprintf("replication slot %s is for plugin %q and database %q, not for %q and %q",
				s.cfg.Slot, slot.Plugin, slot.Database, Plugin, s.cfg.Upstream.config.Database),
			Hint: "name another slot", Err: cause,
		}
	case code(cause) == codeUndefinedObject:
		return s.publicationMissing(existing, cause)
	}
	return nil
}

func (s *Source) publicationMissing(existing []string, cause error) error {
	missing := slices.DeleteFunc(slices.Clone(s.cfg.Publications), func(name string) bool {
		return slices.Contains(existing, name)
	})
	detail := fmt.Sprintf("publication %s does not exist", strings.Join(missing, ", "))
	if len(missing) == 0 {
		detail = "a publication did not exist when the next change was made, although it does now"
	}
	return &source.StateError{
		State: StatePublicationMissing, Detail: detail, Err: cause,
		Hint: "creating it again does not help, since a slot knows the publications as they were at each change: " +
			"create the publication, then make a new replica and a new slot",
	}
}

// lookUp looks whether the server wants to be rid of us: because it shuts down, or because
// our slot holds more WAL than it may. Whoever does not read cannot see that, and would
// keep the server, or its checkpoints, waiting for as long as there is no room.
func (s *Source) lookUp(ctx context.Context) error {
	for range 2 { // the session may have been ended: then the second try has the reason
		var slot SlotState
		err := s.session.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
			slot, err = readSlot(ctx, conn, s.cfg.Slot)
			return err
		})
		switch {
		case err == nil && (slot.Lost || slot.WALStatus == "unreserved"):
			return errOverdue
		case err == nil:
			return nil
		case code(err) == codeAdminShutdown, code(err) == codeCannotConnectNow:
			return fmt.Errorf("%w: %w", errLeaving, err)
		}
	}
	return nil
}

// askOwner asks the Owner hook whether the log is ours. If it cannot say we try again: that
// is neither known to be ours nor final.
func (s *Source) askOwner(ctx context.Context) (ours bool, final error) {
	if s.cfg.Owner == nil {
		return true, nil
	}
	limited, cancel := context.WithTimeout(ctx, s.cfg.HookTimeout)
	defer cancel()
	err := s.cfg.Owner(limited)
	var state *source.StateError
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, source.ErrNotOwner), errors.As(err, &state):
		return false, err
	}
	s.heldSince = time.Time{} // not known to be ours
	if ctx.Err() != nil {
		return false, nil
	}
	s.log.WarnContext(ctx, "owner of the change log could not be found out", "err", err)
	return false, nil
}

// holder decides about whoever holds our slot, once the log is known to be ours [R14]. A
// walsender of ours is what a lost connection, or the owner before us, left behind: it is
// ended when it has held the slot for a while. Anybody else is left alone. If it is the
// peer, who has ended our stream to take over, we yield.
func (s *Source) holder(ctx context.Context) error {
	now := time.Now()
	if s.heldSince.IsZero() {
		s.heldSince = now
	}
	var slot SlotState
	err := s.session.with(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if slot, err = readSlot(ctx, conn, s.cfg.Slot); err != nil || !slot.Active {
			return err
		}
		if slot.ActiveApplication != ApplicationName || s.cfg.Owner == nil || now.Sub(s.heldSince) < s.cfg.HolderGrace {
			return nil
		}
		ended, err := endHolder(ctx, conn, s.cfg.Slot, []string{ApplicationName})
		if ended {
			s.log.WarnContext(ctx, "walsender of ours that held the slot was ended", "pid", slot.ActivePID)
		}
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "holder of the slot could not be looked at", "err", err)
		return nil
	}
	switch {
	case !s.ended || !slot.Active || slot.ActiveApplication == ApplicationName:
		return nil
	case slot.ActiveApplication == s.cfg.Peer:
		return fmt.Errorf("%w: pid %d, application %q, ended our stream and uses slot %s",
			source.ErrNotOwner, slot.ActivePID, slot.ActiveApplication, s.cfg.Slot)
	}
	return &source.StateError{
		State:  StateSlotInUse,
		Detail: fmt.Sprintf("our stream was ended, and pid %d, application %q, uses slot %s now", slot.ActivePID, slot.ActiveApplication, s.cfg.Slot),
		Hint:   "stop that process at once: what it reads is lost to the log",
	}
}
