package hosttest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
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
	listener net.Listener
	service  service
	serving  errgroup.Group

	mu      sync.Mutex // guards what follows
	clients []*net.UnixConn
	// rules are the subscriptions of all clients.
	rules []string
}

// A service answers the call of a method of one of its objects. Descriptors in its answer are
// closed once they are sent.
type service func(path, method string, args []any) ([]any, *godbus.Error)

// startBus listens on the host's bus socket.
func startBus(t testing.TB, root string, service service) *Bus {
	t.Helper()
	Add(t, root, Files{"/run/dbus/keep": ""})
	listener, err := net.Listen("unix", filepath.Join(root, "run/dbus/system_bus_socket"))
	require.NoError(t, err)
	b := &Bus{listener: listener, service: service}
	b.serving.Go(func() error {
		for {
			client, err := listener.Accept()
			if err != nil {
				return nil
			}
			b.serving.Go(func() error { b.serve(client.(*net.UnixConn)); return nil })
		}
	})
	t.Cleanup(func() {
		b.Stop()
		require.NoError(t, b.serving.Wait())
	})
	return b
}

// Stop ends the bus and all connections to it.
func (b *Bus) Stop() {
	_ = b.listener.Close()
	b.Disconnect()
}

// Disconnect ends all connections.
func (b *Bus) Disconnect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, client := range b.clients {
		_ = client.Close()
	}
	b.clients = nil
}

// emit sends a signal to all clients.
func (b *Bus) emit(path, iface, name string, values ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, client := range b.clients {
		send(client, godbus.TypeSignal, values, map[godbus.HeaderField]any{
			godbus.FieldPath: godbus.ObjectPath(path), godbus.FieldInterface: iface, godbus.FieldMember: name,
		})
	}
}

// serve answers the calls of a client.
func (b *Bus) serve(client *net.UnixConn) {
	defer func() { _ = client.Close() }()
	in, err := authenticate(client)
	if err != nil {
		return
	}
	b.mu.Lock()
	b.clients = append(b.clients, client)
	b.mu.Unlock()
	for {
		call, err := godbus.DecodeMessage(in)
		if err != nil {
			return
		}
		header := func(field godbus.HeaderField) string { return fmt.Sprint(call.Headers[field].Value()) }
		path, method := header(godbus.FieldPath), header(godbus.FieldInterface)+"."+header(godbus.FieldMember)
		answer, failure := b.call(path, method, call.Body)
		if failure != nil {
			send(client, godbus.TypeError, failure.Body, map[godbus.HeaderField]any{
				godbus.FieldReplySerial: call.Serial(), godbus.FieldErrorName: failure.Name,
			})
			continue
		}
		send(client, godbus.TypeMethodReply, answer, map[godbus.HeaderField]any{godbus.FieldReplySerial: call.Serial()})
	}
}

// call returns the answer of the bus itself or of the service.
func (b *Bus) call(path, method string, args []any) ([]any, *godbus.Error) {
	switch method {
	case "org.freedesktop.DBus.Hello":
		return []any{":1.1"}, nil
	case "org.freedesktop.DBus.AddMatch":
		b.mu.Lock()
		defer b.mu.Unlock()
		b.rules = append(b.rules, args[0].(string))
		return nil, nil
	}
	return b.service(path, method, args)
}

// send sends a message with its descriptors, and closes them. The client may have gone.
func send(client *net.UnixConn, kind godbus.Type, body []any, headers map[godbus.HeaderField]any) {
	message := godbus.Message{Type: kind, Body: body, Headers: map[godbus.HeaderField]godbus.Variant{}}
	if len(body) > 0 {
		message.Headers[godbus.FieldSignature] = godbus.MakeVariant(godbus.SignatureOf(body...))
	}
	for field, value := range headers {
		message.Headers[field] = godbus.MakeVariant(value)
	}
	var rights []byte
	for _, value := range body {
		if fd, ok := value.(godbus.UnixFD); ok {
			defer func() { _ = unix.Close(int(fd)) }()
			message.Headers[godbus.FieldUnixFDs] = godbus.MakeVariant(uint32(1))
			rights = unix.UnixRights(int(fd))
		}
	}
	var text bytes.Buffer
	if err := message.EncodeTo(&text, binary.LittleEndian); err != nil {
		panic(err)
	}
	_, _, _ = client.WriteMsgUnix(text.Bytes(), rights, nil)
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
