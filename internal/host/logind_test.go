package host_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	godbus "github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// logind is a system bus with a logind on it, which passes file descriptors as the real one does. A real one would take
// the machine of the test down.
type logind struct {
	outside, inside net.Listener
	// serving are the connections, delaying the inhibitors that somebody holds.
	serving, delaying errgroup.Group
	delays            atomic.Int32
	// inhibited gets the arguments of each Inhibit, released a word for each inhibitor that was closed.
	inhibited, released chan string

	mu     sync.Mutex // guards what follows
	going  bool
	peer   *godbus.Conn
	client net.Conn
	passed []*os.File
	ended  bool
}

// startLogind listens at the host's bus socket. It serves one connection after the other.
func startLogind(t *testing.T, root string, going bool) *logind {
	t.Helper()
	add(t, root, files{"/run/dbus/keep": ""})
	l := &logind{going: going, inhibited: make(chan string, 8), released: make(chan string, 8)}
	var err error
	l.outside, err = net.Listen("unix", filepath.Join(root, "run/dbus/system_bus_socket"))
	require.NoError(t, err)
	// The library's own end believes to be a client too, and passes descriptors on a socket alone.
	l.inside, err = net.Listen("unix", filepath.Join(t.TempDir(), "bus"))
	require.NoError(t, err)
	l.serving.Go(func() error {
		for {
			conn, err := l.outside.Accept()
			if err != nil {
				return nil
			}
			l.serve(conn)
		}
	})
	t.Cleanup(func() {
		_ = l.outside.Close()
		_ = l.inside.Close()
		l.hangUp()
		require.NoError(t, l.serving.Wait())
		l.end()
		require.Eventually(t, func() bool { return l.delays.Load() == 0 }, 20*time.Second, 10*time.Millisecond, "every inhibitor is given back")
		require.NoError(t, l.delaying.Wait())
	})
	return l
}

// hangUp ends the connection there is.
func (l *logind) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		_ = l.client.Close()
	}
}

// say tells that the host goes down, or not after all.
func (l *logind) say(t *testing.T, going bool) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.going = going
	require.NoError(t, l.peer.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForShutdown", going))
}

func (l *logind) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	peer, err := godbus.Dial("unix:path=" + l.inside.Addr().String())
	if err != nil {
		return
	}
	defer func() { _ = peer.Close() }()
	far, err := l.inside.Accept()
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	l.export(peer)
	var relay errgroup.Group
	relay.Go(func() error { return peer.Auth([]godbus.Auth{godbus.AuthExternal("0")}) })
	ours, err := greet(far)
	if err != nil || relay.Wait() != nil {
		return
	}
	theirs, err := greet(client)
	if err != nil {
		return
	}
	l.mu.Lock()
	l.peer, l.client = peer, client
	l.mu.Unlock()
	relay.Go(func() error {
		_, _ = io.Copy(far, theirs)
		return far.Close()
	})
	l.pass(ours, far.(*net.UnixConn), client.(*net.UnixConn))
	_ = client.Close()
	_ = relay.Wait()
}

// pass copies messages with the descriptors that they carry.
func (l *logind) pass(buffered *bufio.Reader, from, to *net.UnixConn) {
	first := make([]byte, buffered.Buffered())
	if _, err := io.ReadFull(buffered, first); err != nil {
		return
	}
	if _, err := to.Write(first); err != nil {
		return
	}
	data, extra := make([]byte, 64<<10), make([]byte, 1<<10)
	for {
		n, more, _, _, err := from.ReadMsgUnix(data, extra)
		if err != nil || n == 0 {
			return
		}
		_, _, err = to.WriteMsgUnix(data[:n], extra[:more], nil)
		if more > 0 {
			l.forget(extra[:more])
		}
		if err != nil {
			return
		}
	}
}

// end closes what was made for answers that nobody got, and makes no more.
func (l *logind) end() {
	l.forget(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// forget closes this side's copies of descriptors that were passed on.
func (l *logind) forget(extra []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.passed {
		_ = f.Close()
	}
	l.passed = nil
	messages, _ := unix.ParseSocketControlMessage(extra)
	for i := range messages {
		copies, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range copies {
			_ = unix.Close(fd)
		}
	}
}

func (l *logind) export(peer *godbus.Conn) {
	table := func(methods map[string]any, path, iface string) {
		if err := peer.ExportMethodTable(methods, godbus.ObjectPath(path), iface); err != nil {
			panic(err)
		}
	}
	table(map[string]any{
		"Hello":    func() (string, *godbus.Error) { return ":1.1", nil },
		"AddMatch": func(string) *godbus.Error { return nil },
	}, "/org/freedesktop/DBus", "org.freedesktop.DBus")
	table(map[string]any{"Inhibit": l.inhibit}, "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
	table(map[string]any{"Get": func(_, property string) (godbus.Variant, *godbus.Error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if property != "PreparingForShutdown" {
			return godbus.Variant{}, godbus.MakeFailedError(io.EOF)
		}
		return godbus.MakeVariant(l.going), nil
	}}, "/org/freedesktop/login1", "org.freedesktop.DBus.Properties")
}

// inhibit gives out one end of a pipe, as logind does: the delay ends when that is closed everywhere.
func (l *logind) inhibit(what, who, _, mode string) (godbus.UnixFD, *godbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, godbus.MakeFailedError(io.EOF)
	}
	if l.going { // logind-dbus.c, method_inhibit
		return 0, godbus.NewError("org.freedesktop.login1.OperationInProgress", nil)
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, godbus.MakeFailedError(err)
	}
	l.delays.Add(1)
	l.delaying.Go(func() error {
		defer l.delays.Add(-1)
		_, _ = io.ReadAll(ours)
		l.released <- who
		return ours.Close()
	})
	l.passed = append(l.passed, theirs)
	l.inhibited <- strings.Join([]string{what, who, mode}, " ")
	return godbus.UnixFD(theirs.Fd()), nil
}
