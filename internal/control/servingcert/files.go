package servingcert

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"reflect"
	"time"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// filesInterval is the time between two readings of the files.
const filesInterval = time.Second

// followFiles loads the files and follows their changes until ctx ends. It waits for files that do
// not exist yet. If changed files cannot be used, it keeps the certificate that it has.
func (s *Source) followFiles(ctx context.Context) error {
	var logged loop.LogOnce
	for {
		err := s.loadFiles()
		if logged.ChangedErrorText("", err) && err != nil {
			s.options.Log.WarnContext(ctx, "failed to load the serving certificate; retrying", "err", err)
		}
		if err := loop.Wait(ctx, filesInterval, nil); err != nil {
			return err
		}
	}
}

func (s *Source) loadFiles() error {
	o, previous := s.options, s.servedCert()
	certificate, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
	if err != nil {
		err = fmt.Errorf("loading the serving certificate %s with the key %s: %w", o.CertFile, o.KeyFile, err)
		if previous == nil {
			s.serve(nil, err.Error())
		}
		return err
	}
	if previous != nil && reflect.DeepEqual(previous.Certificate, certificate.Certificate) {
		return nil
	}
	reason := ""
	if name := o.dnsName(); certificate.Leaf.VerifyHostname(name) != nil {
		reason = fmt.Sprintf("the serving certificate %s is not valid for %s, the name that the API server calls; "+
			"add this DNS name to the certificate", o.CertFile, name)
	}
	if problem := cmp.Or(reason, invalidReason(certificate.Leaf, time.Now())); problem != "" && s.Ready() == nil {
		return fmt.Errorf("keeping the previous certificate: %s", problem)
	}
	s.serve(&certificate, reason)
	return nil
}
