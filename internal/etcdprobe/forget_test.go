package etcdprobe

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// A container's data directory has another name each time that the container is started.
func TestServersThatNobodyAsksForAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{})
		defer p.Close()
		at := func(dir string) protect.Sighting { return protect.Sighting{Config: protect.Config{DataDir: dir}} }
		stopped := at("/var/lib/etcd")
		p.remember(stopped, protect.MemberRef{}, target{}, nil)
		for start := range 30 {
			p.remember(at(fmt.Sprintf("/proc/%d/root/data", start)), protect.MemberRef{}, target{}, nil)
			<-time.NewTimer(time.Minute).C
			_, known := p.recall(stopped)
			require.True(t, known, "one that is stopped is asked for with every look")
		}
		require.Len(t, p.known, 2+int(idleLife/time.Minute), "itself, and those of the last minutes")
	})
}
