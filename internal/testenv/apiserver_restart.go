package testenv

import (
	"context"
	"fmt"
)

// Restart starts the API server again, at the same address and with the same data, after Process().Kill. Its clients have
// seen refused connections meanwhile.
func (s *APIServer) Restart(ctx context.Context) error {
	binary, err := Binary("kube-apiserver")
	if err != nil {
		return err
	}
	s.process, err = StartProcess(ProcessOptions{
		Name: "kube-apiserver", Path: binary, Args: s.args(), LogFile: s.Log(), Dir: s.opts.Dir,
	})
	if err != nil {
		return fmt.Errorf("restarting kube-apiserver: %w", err)
	}
	return s.waitReady(ctx)
}
