package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/testenv/testlog"
)

func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &testlog.Buffer{}
	var group errgroup.Group
	group.Go(func() error {
		return run(ctx, []string{"-listen=127.0.0.1:0", "-step=10ms", "-workers=2", "-form=3"}, out)
	})
	isServing := func() bool { return strings.Contains(out.String(), "/nodes\n") }
	require.Eventually(t, isServing, 10*time.Second, 5*time.Millisecond)
	base, _, _ := strings.Cut(out.String(), "\n")
	require.Eventually(t, func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/orgs/6/clusters/504/nodes", nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer a12f59e2788386a302c5d199b5506725")
		answer, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return strings.Count(string(body), `"state":"running"`) == 3
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, group.Wait())
}

func TestInvalidFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-form=4": "choose 0 to 3", "-fail=often": "-help lists all", "-listen=nowhere:0:0": "listening on -listen",
		"-nonsense": "not defined",
	} {
		require.ErrorContains(t, run(t.Context(), []string{args}, io.Discard), want)
	}
}
