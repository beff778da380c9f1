package plugin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// testChanges runs the commands that change something, and deletes what they leave.
func testChanges(t *testing.T, server *apiserver.Server) {
	f := newChangeFixture(t, server)
	t.Run("usage", func(t *testing.T) { testChangeUsage(t, f) })
	t.Run("confirmation", func(t *testing.T) { testConfirmation(t, f) })
	t.Run("rights", func(t *testing.T) { testRights(t, f) })
	t.Run("break-glass", func(t *testing.T) { testBreakGlass(t, f) })
	t.Run("hold and release", func(t *testing.T) { testHoldAndRelease(t, f) })
	t.Run("settle", func(t *testing.T) { testSettle(t, f) })
	t.Run("uninstall", func(t *testing.T) { testUninstallRights(t, f) })
	t.Run("completion", func(t *testing.T) { testNameCompletion(t, f) })
	for _, command := range []string{
		// The policy lets only the webhook end grants.
		`patch etcdclusters c1 c2 c3 c4 --type=merge -p {"spec":{"grants":null}} ` +
			"--as=system:serviceaccount:holdfast-system:holdfast-webhook",
		"delete etcdclusters --all", "delete nodes --all",
	} {
		_, err := server.Kubectl(t.Context(), strings.Fields(command)...)
		require.NoError(t, err)
	}
}

func testChangeUsage(t *testing.T, f *changeFixture) {
	f.addOpenNode(t, "usage-1")
	long := strings.Repeat("x", 5000)
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no node":         {[]string{"break-glass", "--reason=x"}, cli.ExitUsage, "name a node"},
		"two nodes":       {[]string{"release", "a", "b"}, cli.ExitUsage, `unexpected argument "b"`},
		"unknown flag":    {[]string{"hold", "usage-1", "--force"}, cli.ExitUsage, "unknown flag: --force"},
		"unknown node":    {[]string{"hold", "nowhere", "--yes"}, cli.ExitFailure, `there is no node "nowhere"; to list`},
		"no reason":       {[]string{"break-glass", "usage-1"}, cli.ExitUsage, "--reason is missing"},
		"blank reason":    {[]string{"break-glass", "usage-1", "--reason= "}, cli.ExitUsage, "--reason is missing"},
		"long reason":     {[]string{"break-glass", "usage-1", "--reason=" + long}, cli.ExitUsage, "longer than 4096 bytes"},
		"too long":        {[]string{"break-glass", "usage-1", "--reason=x", "--for=61m"}, cli.ExitUsage, "more than 1h0m0s"},
		"no time":         {[]string{"break-glass", "usage-1", "--reason=x", "--for=0s"}, cli.ExitUsage, "--for=0s is not"},
		"nothing held":    {[]string{"release", "usage-1", "--yes"}, cli.ExitFailure, "node usage-1, and it is open"},
		"no grant at all": {[]string{"settle", "usage-1", "--yes"}, cli.ExitFailure, "there is no open grant in this"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := f.run(t, operator, "", test.args...)
			require.Contains(t, out, test.want)
			require.Equal(t, test.code, code)
		})
	}
}

// testConfirmation checks that nothing is written without a yes.
func testConfirmation(t *testing.T, f *changeFixture) {
	f.addOpenNode(t, "confirm-1")
	before := f.node(t, "confirm-1").ResourceVersion
	for name, test := range map[string]struct {
		answer string
		args   []string
		code   int
		want   string
	}{
		"no terminal": {"", nil, cli.ExitUsage, "its input is not a terminal; add --yes, or --dry-run"},
		"no":          {"n", nil, cli.ExitFailure, "not confirmed; nothing was changed"},
		"enter":       {" ", nil, cli.ExitFailure, "not confirmed"},
		"dry run":     {"", []string{"--dry-run", "--yes"}, cli.ExitSuccess, "kubectl-holdfast -p"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := f.run(t, operator, test.answer, append([]string{"hold", "confirm-1"}, test.args...)...)
			require.Contains(t, out, test.want)
			require.Equal(t, test.code, code)
			require.Equal(t, before, f.node(t, "confirm-1").ResourceVersion)
		})
	}
	code, out := f.run(t, operator, "y", "hold", "confirm-1")
	require.Equal(t, cli.ExitSuccess, code, out)
	require.Contains(t, out, "Proceed? [y/N] node confirm-1: kept closed")
	require.True(t, f.node(t, "confirm-1").Spec.Unschedulable)
}

// testRights runs the commands as a user who may only read.
func testRights(t *testing.T, f *changeFixture) {
	_, _, err := f.AddNode(t.Context(), apiserver.NodeSpec{Name: "rights-1", Ready: true})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"break-glass": {
			[]string{"break-glass", "rights-1", "--reason=x", "--and-delete"},
			[]string{
				"to breakglass etcdclusters.holdfast.dev; an administrator grants it: kubectl create clusterrolebinding",
				"to patch nodes", "to delete nodes",
			},
		},
		"release": {[]string{"release", "rights-1"}, []string{"to patch nodes", "to patch nodes/status"}},
		"hold":    {[]string{"hold", "rights-1"}, []string{"to patch nodes"}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "release" { // It needs a node that is held.
				apiserver.RequireBornHeld(t, f.Server)
			}
			code, out := f.run(t, reader, "", append(test.args, "--yes")...)
			require.Equal(t, cli.ExitFailure, code)
			for _, want := range test.want {
				require.Contains(t, out, "you have no permission "+want)
			}
			code, out = f.run(t, reader, "", append(test.args, "--dry-run")...)
			require.Equal(t, cli.ExitSuccess, code, "the commands may be for another user")
			require.Contains(t, out, "# you have no permission "+test.want[0])
			require.Contains(t, out, "\nkubectl ")
		})
	}
}
