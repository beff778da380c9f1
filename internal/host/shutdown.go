package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	godbus "github.com/godbus/dbus/v5"
)

const (
	logindName    = "org.freedesktop.login1"
	logindPath    = "/org/freedesktop/login1"
	logindManager = logindName + ".Manager"
)

// shutdown is what logind says of the host's shutdown, and the inhibitor that delays it (logind's inhibitor locks, type
// `shutdown`, mode `delay`). logind itself goes on after InhibitDelayMaxSec, 5 s by default, whatever happens here.
type shutdown struct {
	mu        sync.Mutex // guards what follows
	going     bool
	inhibitor *os.File
	// deaf is since when nobody listens to logind; zero while somebody does.
	deaf time.Time
}

// hearsay is how long what logind last said counts after the bus was lost, and how long its word is awaited. The bus goes
// with the host; but if the shutdown was called off meanwhile, nobody would ever hear of it, and a node must not be held
// for that.
const hearsay = time.Minute

// set notes what logind says, and whether that is news.
func (s *shutdown) set(going bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.going != going
	s.going, s.deaf = going, time.Time{}
	return changed
}

// lose notes that nobody listens to logind from now on, unless nobody does already.
func (s *shutdown) lose(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaf.IsZero() {
		s.deaf = now
	}
}

// say is what is known of the host's course.
func (s *shutdown) say(now time.Time) (going, stays, awaited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.deaf.IsZero():
		return s.going, !s.going, false
	case now.Sub(s.deaf) < hearsay:
		return s.going, false, !s.going
	}
	return false, false, false
}

// take replaces the inhibitor; nil only lets go of the one there is.
func (s *shutdown) take(inhibitor *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.inhibitor
	s.inhibitor = inhibitor
	if before == nil {
		return nil
	}
	return before.Close()
}

// LetGo ends the delay of a shutdown that Network has told of, if there is one: what had to be done before is done.
func (h *Host) LetGo() error {
	if going, _, _ := h.shutdown.say(time.Now()); !going {
		return nil
	}
	if err := h.shutdown.take(nil); err != nil {
		return fmt.Errorf("ending the delay of the shutdown: %w", err)
	}
	return nil
}

// watchShutdown wakes when the host begins to go down, or does not go down after all. The shutdown waits until LetGo.
func (h *Host) watchShutdown(ctx context.Context, wake, up func()) (err error) {
	// The end of ctx does not end the connection: an answer with a descriptor that came just then would be lost, and with
	// it the means to end the delay.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	dialled := context.AfterFunc(ctx, end)
	conn, err := h.dial(life)
	if err != nil {
		return fmt.Errorf("connecting to the system bus: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing to lose
	dialled()
	signals := make(chan *godbus.Signal, 16)
	conn.Signal(signals)
	defer func() {
		h.shutdown.lose(time.Now())
		_ = h.shutdown.take(nil) // a delay that nobody ends only costs time
	}()
	if err := h.followShutdown(ctx, conn); err != nil {
		return err
	}
	up()
	wake() // it may be going down since before
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case signal, open := <-signals:
			if !open {
				return errBusLost
			}
			going, told := goingDown(signal)
			if !told || !h.shutdown.set(going) {
				continue
			}
			wake()
			if going {
				continue
			}
			if err := h.inhibit(conn); err != nil {
				return err
			}
		}
	}
}

// goingDown reads logind's signal PrepareForShutdown.
func goingDown(s *godbus.Signal) (going, told bool) {
	if s.Name != logindManager+".PrepareForShutdown" || len(s.Body) != 1 {
		return false, false
	}
	going, told = s.Body[0].(bool)
	return going, told
}

// followShutdown asks for the signal, then whether the host is going down already, then for the delay: in this order
// nothing is missed.
func (h *Host) followShutdown(ctx context.Context, conn *godbus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	err := conn.AddMatchSignalContext(ctx, godbus.WithMatchInterface(logindManager), godbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		return fmt.Errorf("asking the system bus for logind's signals: %w", err)
	}
	var going bool
	const property = "PreparingForShutdown"
	err = conn.Object(logindName, logindPath).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, logindManager, property).Store(&going)
	if err != nil {
		return fmt.Errorf("asking logind whether the host is going down: %w", err)
	}
	h.shutdown.set(going)
	return h.inhibit(conn)
}

// inhibit makes a shutdown wait for LetGo. One that has begun cannot be delayed any more, and is told by the signal.
func (h *Host) inhibit(conn *godbus.Conn) error {
	call := conn.Object(logindName, logindPath).Go(logindManager+".Inhibit", 0, make(chan *godbus.Call, 1),
		"shutdown", "holdfast-agent", "the node is cordoned before it goes down", "delay")
	patience := time.NewTimer(busTimeout)
	defer patience.Stop()
	select {
	case <-call.Done:
	case <-patience.C:
		_ = conn.Close() // which ends the call
		<-call.Done
	}
	var inhibitor godbus.UnixFD
	err := call.Store(&inhibitor)
	var refused godbus.Error
	if errors.As(err, &refused) && refused.Name == logindName+".OperationInProgress" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking logind to delay a shutdown: %w", err)
	}
	return h.shutdown.take(os.NewFile(uintptr(inhibitor), "logind inhibitor"))
}
