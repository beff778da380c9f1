package main

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func TestOpenPortIsWarnedOf(t *testing.T) {
	for name, test := range map[string]struct {
		clientCA string
		want     bool
	}{
		"anybody may call":          {"", true},
		"a certificate is demanded": {"ca.pem", false},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			require.NoError(t, testenv.WriteKubeconfig(kubeconfig, &rest.Config{Host: "http://127.0.0.1:1"}))
			cfg := config{kubeconfig: kubeconfig, listen: "127.0.0.1:0", clientCAFile: test.clientCA}
			// There is no API server, so that it waits until it is ended.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var log bytes.Buffer
			require.NoError(t, run(ctx, cfg, &log))
			require.Contains(t, log.String(), "webhook starting")
			if test.want {
				require.Contains(t, log.String(), "level=WARN")
				require.Contains(t, log.String(), "set --client-ca-file")
			} else {
				require.NotContains(t, log.String(), "--client-ca-file")
			}
		})
	}
}
