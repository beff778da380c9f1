package hosttest

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	godbus "github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A Bus is a system bus with one service on it. A real systemd or logind needs a machine of
// its own. The bus speaks the protocol and passes file descriptors. The service returns what
// the test defines.
type Bus struct {
	// Both listeners are sockets, because the library passes descriptors on sockets alone.
	// outer accepts clients. inner accepts one connection of the library for each of them.
	outer, inner net.Listener
	export       func(peer *godbus.Conn)
	serving      errgroup.Group

	mu      sync.Mutex // guards what follows
	peers   []*godbus.Conn
	clients []net.Conn
	// passed are files that are closed once they are sent, or when the bus has ended.
	passed []*os.File
	ended  bool
	// rules are the subscriptions of all clients.
	rules []string
}

// startBus listens on the host's bus socket. export adds the objects of the service.
func startBus(t testing.TB, root string, export func(peer *godbus.Conn)) *Bus {
	t.Helper()
	b := &Bus{outer: listenBus(t, root), export: export}
	var err error
	b.inner, err = net.Listen("unix", filepath.Join(t.TempDir(), "bus"))
	require.NoError(t, err)
	b.serving.Go(func() error {
		for {
			client, err := b.outer.Accept()
			if err != nil {
				return nil
			}
			peer, far, err := b.connectPeer()
			if err != nil {
				_ = client.Close()
				continue
			}
			b.serving.Go(func() error { b.serve(client.(*net.UnixConn), peer, far.(*net.UnixConn)); return nil })
		}
	})
	t.Cleanup(func() {
		b.Stop()
		require.NoError(t, b.serving.Wait())
		_ = b.inner.Close()
		b.closePassed(true)
	})
	return b
}

// listenBus listens on the host's bus socket. The caller serves and closes the listener.
func listenBus(t testing.TB, root string) net.Listener {
	t.Helper()
	Add(t, root, Files{"/run/dbus/keep": ""})
	listener, err := net.Listen("unix", filepath.Join(root, "run/dbus/system_bus_socket"))
	require.NoError(t, err)
	return listener
}

// Stop ends the bus and all connections to it.
func (b *Bus) Stop() {
	_ = b.outer.Close()
	b.Disconnect()
}

// Disconnect ends all connections.
func (b *Bus) Disconnect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, client := range b.clients {
		_ = client.Close()
	}
	b.clients, b.peers = nil, nil
}

// emit sends a signal to all clients.
func (b *Bus) emit(path, name string, values ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, peer := range b.peers {
		_ = peer.Emit(godbus.ObjectPath(path), name, values...)
	}
}

// pass returns the descriptor of a file for an answer. The file is closed once it is sent.
func (b *Bus) pass(f *os.File) godbus.UnixFD {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		defer func() { _ = f.Close() }()
	} else {
		b.passed = append(b.passed, f)
	}
	return godbus.UnixFD(f.Fd())
}

func (b *Bus) closePassed(ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = ended
	for _, f := range b.passed {
		_ = f.Close()
	}
	b.passed = nil
}

// connectPeer opens a connection of the library and accepts its far end.
func (b *Bus) connectPeer() (*godbus.Conn, net.Conn, error) {
	peer, err := godbus.Dial("unix:path=" + b.inner.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	exportObject(peer, "/org/freedesktop/DBus", "org.freedesktop.DBus", map[string]any{
		"Hello": func() (string, *godbus.Error) { return ":1.1", nil },
		"AddMatch": func(rule string) *godbus.Error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.rules = append(b.rules, rule)
			return nil
		},
	})
	b.export(peer)
	far, err := b.inner.Accept()
	return peer, far, err
}

// serve connects a client to a connection of the library. Both act as clients of a bus.
func (b *Bus) serve(client *net.UnixConn, peer *godbus.Conn, far *net.UnixConn) {
	var relay errgroup.Group
	defer func() {
		_, _, _ = client.Close(), peer.Close(), far.Close()
		_ = relay.Wait()
	}()
	relay.Go(func() error { return peer.Auth([]godbus.Auth{godbus.AuthExternal("0")}) })
	fromPeer, err := authenticate(far)
	if err != nil || relay.Wait() != nil {
		return
	}
	fromClient, err := authenticate(client)
	if err != nil {
		return
	}
	b.mu.Lock()
	b.peers, b.clients = append(b.peers, peer), append(b.clients, client)
	b.mu.Unlock()
	relay.Go(func() error {
		_, _ = io.Copy(far, fromClient)
		return far.Close()
	})
	b.relay(fromPeer, far, client)
}

// relay copies messages and their descriptors to a client.
func (b *Bus) relay(buffered *bufio.Reader, from, to *net.UnixConn) {
	if _, err := io.CopyN(to, buffered, int64(buffered.Buffered())); err != nil {
		return
	}
	data, control := make([]byte, 64<<10), make([]byte, 1<<10)
	for {
		n, c, _, _, err := from.ReadMsgUnix(data, control)
		if err != nil || n == 0 {
			return
		}
		_, _, err = to.WriteMsgUnix(data[:n], control[:c], nil)
		if c > 0 {
			b.closePassed(false)
			closeRights(control[:c])
		}
		if err != nil {
			return
		}
	}
}

// closeRights closes this process's copies of the descriptors in a message.
func closeRights(control []byte) {
	messages, _ := unix.ParseSocketControlMessage(control)
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}

// authenticate is the bus's side of the authentication (D-Bus specification, authentication
// protocol).
func authenticate(conn io.ReadWriter) (*bufio.Reader, error) {
	in := bufio.NewReader(conn)
	if _, err := in.ReadByte(); err != nil {
		return nil, err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		answer := "ERROR\r\n"
		switch line = strings.TrimSpace(line); {
		case line == "BEGIN":
			return in, nil
		case line == "AUTH":
			answer = "REJECTED EXTERNAL\r\n"
		case line == "AUTH EXTERNAL", strings.HasPrefix(line, "DATA"):
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		case line == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return nil, err
		}
	}
}

func exportObject(peer *godbus.Conn, path, iface string, methods map[string]any) {
	if err := peer.ExportMethodTable(methods, godbus.ObjectPath(path), iface); err != nil {
		panic(err)
	}
}
