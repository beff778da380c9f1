package plugin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

func status(t *testing.T, c *reviewedCluster) {
	requireGolden(t, "status-healthy.txt", c.run("status").out)

	c.setHealth(1, false)
	held := c.worker(t, "worker-1")
	record := fmt.Sprintf(`{"state":"held","since":%q,"reason":"NewNode"}`,
		time.Now().Add(-20*time.Minute-time.Second).UTC().Format(time.RFC3339))
	c.patch(held, `{"spec":{"unschedulable":true}}`)
	c.patch(held, fmt.Sprintf(`{"metadata":{"annotations":{"holdfast.dev/hold":%q}}}`, record))
	degraded := c.run("status")
	requireGolden(t, "status-degraded.txt", degraded.out)
	require.Equal(t, 0, degraded.code)
	requireGolden(t, "status.json", c.run("status", "-o", "json").out)

	viewer, err := c.server.User("viewer")
	require.NoError(t, err)
	path := t.TempDir() + "/kubeconfig"
	require.NoError(t, apiserver.WriteKubeconfig(path, viewer))
	for _, args := range [][]string{{"status"}, {"status", "--watch"}} {
		denied := runPlugin(t.Context(), append([]string{"--kubeconfig=" + path}, args...)...)
		require.Equal(t, 1, denied.code)
		require.Contains(t, denied.errOut, "you need the verb list")
	}
	require.Equal(t, 2, c.run("status", "w1").code, "status takes no argument")

	nonce := c.withoutAgents()
	answered := make(chan commandResult)
	go func() { answered <- c.run("status") }()
	c.PublishAll(nonce)
	require.NotContains(t, (<-answered).out, "cannot see etcd cluster")
}

// statusWatch watches through a proxy, which fails for a while.
func statusWatch(t *testing.T, c *reviewedCluster) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, printed := io.Pipe()
	errOut, failed := io.Pipe()
	context.AfterFunc(ctx, func() { // the command and the test wait no longer
		_, _ = out.Close(), errOut.Close()
	})
	var isDown atomic.Bool
	target, err := url.Parse(c.server.Admin().Host)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, err = rest.TransportFor(c.server.Admin())
	require.NoError(t, err)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isDown.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer web.Close()
	code := make(chan int)
	go func() {
		streams := Streams{In: strings.NewReader(""), Out: printed, ErrOut: failed}
		code <- Execute(ctx, streams, "v0.1.0", []string{"--server=" + web.URL, "status", "--watch", "-o", "yaml"})
	}()
	lines, all := bufio.NewScanner(out), ""
	wait := func(text string) {
		t.Helper()
		for !strings.Contains(all, text) {
			require.True(t, lines.Scan(), text)
			all += lines.Text() + "\n"
		}
	}
	wait("etcd2")
	require.NotContains(t, all, "NotConfirmed")
	c.setHealth(2, false)
	wait("NotConfirmed")
	require.Contains(t, all, "\n---\n", "each status is a document")
	isDown.Store(true)
	c.withoutAgents()
	text, err := bufio.NewReader(errOut).ReadString('\n')
	require.NoError(t, err, "what is shown is not the present state, and nothing reports that")
	require.Contains(t, text, "; trying again")
	isDown.Store(false)
	go func() { _, _ = io.Copy(io.Discard, errOut) }()
	wait("CannotSee")
	cancel()
	require.Equal(t, 0, <-code, "Ctrl-C ends the watch without an error")
}

// TestStatusWithoutClusters: the label of the Node shows that etcd was found.
func TestStatusWithoutClusters(t *testing.T) {
	labels := map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue}
	state := report.State{Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "w2", Labels: labels}}}}
	var out strings.Builder
	require.NoError(t, printStatus(&out, state, asTable))
	require.Regexp(t, `(?s)^There is no EtcdCluster\..*Warnings:\n- UnknownMember: .*: kubectl holdfast why w2\n$`,
		out.String())
}

func TestDoorRows(t *testing.T) {
	now := time.Now()
	g := report.GrantStatus{Node: "w1", Members: []v1alpha1.MemberID{"a", "b"}, NodeExists: true}
	g.Doors = []report.DoorStatus{
		{Kind: quorum.DoorDelete, User: "alice", BreakGlass: true, Since: now.Add(-time.Hour), ShutWhen: "x"},
		{Kind: quorum.DoorGone, Since: now.Add(-time.Minute), ShutWhen: "y"},
	}
	rows := doorRows(report.ClusterStatus{ID: "c"}, g, now)
	require.Len(t, rows, 2)
	require.Equal(t, "Delete|w1|c|a,b|alice (break-glass)|60m|yes|x", strings.Join(rows[0], "|"))
	require.Equal(t, "Gone|w1|c|a,b|not reviewed|60s|yes|y", strings.Join(rows[1], "|"))
}
