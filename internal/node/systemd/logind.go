package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	godbus "github.com/godbus/dbus/v5"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	logindName    = "org.freedesktop.login1"
	logindPath    = "/org/freedesktop/login1"
	logindManager = logindName + ".Manager"
)

const (
	// stateLifetime is how long logind's report is awaited, at first and after the bus is lost.
	stateLifetime = time.Minute
	// shutdownLifetime is how long a shutdown outlives the connection. The bus stops before the host,
	// and units that do not stop delay the host further, each for 90 s by default. systemd forces
	// the end after 30 minutes (reboot.target, JobTimeoutSec). The limit ends the state if the
	// shutdown was cancelled without a report.
	shutdownLifetime = 30 * time.Minute
)

// A ShutdownMonitor observes the host's shutdown through logind, and delays it by an
// inhibitor lock of type "shutdown" and mode "delay". logind itself ends the delay after
// InhibitDelayMaxSec, which is 5 s by default.
type ShutdownMonitor struct {
	root hostfs.Root

	mu        sync.Mutex // guards what follows
	goingDown bool
	// sawShutdown is whether a shutdown has begun since the monitor exists.
	sawShutdown bool
	inhibitor   *os.File
	// lostAt is the time at which the connection to logind was lost. It is zero while
	// connected.
	lostAt time.Time
}

// NewShutdownMonitor returns a monitor of the host below root. It has no connection until
// Watch.
func NewShutdownMonitor(root hostfs.Root) *ShutdownMonitor {
	return &ShutdownMonitor{root: root, lostAt: time.Now()}
}

// set stores the state that logind reports, and reports whether it changed.
func (m *ShutdownMonitor) set(goingDown bool) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed = m.goingDown != goingDown
	m.goingDown, m.lostAt = goingDown, time.Time{}
	m.sawShutdown = m.sawShutdown || goingDown
	return changed
}

// setLost stores that the connection is lost, unless it was lost before.
func (m *ShutdownMonitor) setLost(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lostAt.IsZero() {
		m.lostAt = now
	}
}

// SetFacts sets what is known of the host's shutdown.
func (m *ShutdownMonitor) SetFacts(f *readiness.Facts, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.SawShutdown = m.sawShutdown
	switch {
	case m.lostAt.IsZero():
		f.GoingDown, f.StaysUp = m.goingDown, !m.goingDown
	case m.goingDown:
		f.GoingDown = now.Sub(m.lostAt) < shutdownLifetime
	default:
		f.AwaitsLogind = now.Sub(m.lostAt) < stateLifetime
	}
}

// setInhibitor replaces and closes the present inhibitor. With nil, it only closes it.
func (m *ShutdownMonitor) setInhibitor(inhibitor *os.File) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.inhibitor
	m.inhibitor = inhibitor
	if before == nil {
		return nil
	}
	return before.Close()
}

// EndDelay lets a shutdown proceed that SetFacts has reported. It does nothing while the host
// stays up.
func (m *ShutdownMonitor) EndDelay() error {
	var facts readiness.Facts
	if m.SetFacts(&facts, time.Now()); !facts.GoingDown {
		return nil
	}
	if err := m.setInhibitor(nil); err != nil {
		return fmt.Errorf("ending the delay of the shutdown: %w", err)
	}
	return nil
}

// Watch calls notify when a shutdown begins or is cancelled, until ctx ends or the connection
// is lost. Meanwhile a shutdown waits for EndDelay. Watch calls ready once it is subscribed.
func (m *ShutdownMonitor) Watch(ctx context.Context, notify, ready func()) (err error) {
	// The end of ctx does not end the connection. An answer with a file descriptor that
	// arrives at that moment would be lost, and the delay could not be ended.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	dialled := context.AfterFunc(ctx, end)
	defer dialled()
	conn, err := dial(life, m.root)
	if err != nil {
		return fmt.Errorf("connecting to the system bus: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing to lose
	dialled()
	signals := make(chan *godbus.Signal, 16)
	conn.Signal(signals)
	defer func() {
		m.setLost(time.Now())
		_ = m.setInhibitor(nil) // without a connection the delay only costs time
	}()
	if err := m.subscribe(ctx, conn); err != nil {
		return err
	}
	ready()
	notify() // for a shutdown that began before
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case signal, open := <-signals:
			if !open {
				return errBusLost
			}
			var goingDown bool
			if signal.Name != logindManager+".PrepareForShutdown" || godbus.Store(signal.Body, &goingDown) != nil ||
				!m.set(goingDown) {
				continue
			}
			notify()
			if goingDown {
				continue
			}
			if err := m.inhibit(conn); err != nil {
				return err
			}
		}
	}
}

// subscribe subscribes to the signal, then reads the present state, then takes the inhibitor.
// In this order no change is missed.
func (m *ShutdownMonitor) subscribe(ctx context.Context, conn *godbus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	err := conn.AddMatchSignalContext(ctx,
		godbus.WithMatchInterface(logindManager), godbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		return fmt.Errorf("subscribing to signals of logind: %w", err)
	}
	var goingDown bool
	err = conn.Object(logindName, logindPath).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0,
		logindManager, "PreparingForShutdown").Store(&goingDown)
	if err != nil {
		return fmt.Errorf("reading the state of the host from logind: %w", err)
	}
	m.set(goingDown)
	return m.inhibit(conn)
}

// inhibit takes an inhibitor, which delays a shutdown until EndDelay. logind refuses it once
// a shutdown has begun; the signal reports that shutdown.
func (m *ShutdownMonitor) inhibit(conn *godbus.Conn) error {
	call := conn.Object(logindName, logindPath).Go(logindManager+".Inhibit", 0, make(chan *godbus.Call, 1),
		"shutdown", "holdfast-agent", "Cordon the node before shutdown", "delay")
	select {
	case <-call.Done:
	case <-time.After(busTimeout):
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
		return fmt.Errorf("taking an inhibitor lock of logind: %w", err)
	}
	return m.setInhibitor(os.NewFile(uintptr(inhibitor), "logind inhibitor"))
}
