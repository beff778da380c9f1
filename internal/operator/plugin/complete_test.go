package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
)

func testNameCompletion(t *testing.T, f *changeFixture) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nodes":           {[]string{"release", "settle-"}, "settle-1\n:4\n"},
		"second argument": {[]string{"release", "settle-1", ""}, ":4\n"},
		"several nodes":   {[]string{"can-remove", "settle-1", "settle-"}, ":4\n"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"__complete", "--kubeconfig=" + f.kubeconfigs[reader]}, test.args...)
			r := runPlugin(t.Context(), args...)
			require.Equal(t, cli.ExitSuccess, r.code, r.errOut)
			require.Equal(t, test.want, r.out)
		})
	}
}
