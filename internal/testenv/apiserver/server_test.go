package apiserver_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

func TestServiceProxy(t *testing.T) {
	server := apiserver.New(t)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "echo"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9443}}},
	}
	_, err := server.Client().CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
	require.NoError(t, err)
	one, two := startNameServer(t, "one"), startNameServer(t, "two")
	gone := "127.0.0.1:1"
	proxy, err := server.ServeService(t.Context(), "default", "echo", one, gone, two)
	require.NoError(t, err)
	names := map[string]bool{}
	for range 3 {
		names[readName(t, proxy.Address())] = true
	}
	require.Equal(t, map[string]bool{"one": true, "two": true}, names)
	proxy.SetBackends(two)
	require.Equal(t, "two", readName(t, proxy.Address()))
	proxy.SetBackends()
	require.Empty(t, readName(t, proxy.Address()), "a service without backends must close the connection")
	idle, err := net.Dial("tcp", proxy.Address())
	require.NoError(t, err)
	require.NoError(t, proxy.Close())
	require.NoError(t, proxy.Close())
	_, err = io.ReadAll(idle)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = net.Dial("tcp", proxy.Address())
	require.Error(t, err)
}

// startNameServer listens on a free port and writes its name to each connection.
func startNameServer(t *testing.T, name string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(name))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().String()
}

func readName(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	text, _ := io.ReadAll(conn)
	return string(text)
}
