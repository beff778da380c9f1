package agent

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// listInterval is the longest time between two reads of a local server's member list. A read takes
// the agent a sixth, and etcd a fourteenth, of the CPU time of an observation: together less than a
// thousandth of a core (BenchmarkListMembers).
const listInterval = 2 * time.Second

// memberLists are the member lists of the local servers, by cluster.
type memberLists map[v1alpha1.ClusterID][]v1alpha1.MemberStatus

// A listWatcher notices within listInterval that the member list of a local server has changed. It
// reads the list as the server stores it, which needs no quorum and costs the server one small
// request. The list is no evidence. It only makes a probe due, which reads a confirmed list. A
// member that joins and leaves between two reads is not noticed: an observation that has found it
// stays for up to publishInterval, and answers no later nonce.
type listWatcher struct {
	read func(context.Context, evidence.Server, evidence.Identity) ([]v1alpha1.MemberStatus, error)
	// changed is called when a list has changed.
	changed func()
	// members are the local members, and lists their latest lists. A list is missing until it was
	// read for the first time.
	members latest[map[v1alpha1.ClusterID]evidence.FoundServer]
	lists   latest[memberLists]
}

func (w *listWatcher) run(ctx context.Context) error {
	for {
		began := time.Now()
		w.readAll(ctx)
		if err := loop.Wait(ctx, jittered(listInterval)-time.Since(began), nil); err != nil {
			return err
		}
	}
}

// readAll reads the lists of all local members side by side. A list that cannot be read has not
// changed.
func (w *listWatcher) readAll(ctx context.Context) {
	members, _ := w.members.get()
	before, _ := w.lists.get()
	after := memberLists{}
	var mu sync.Mutex // guards after
	var reads sync.WaitGroup
	for cluster, m := range members {
		reads.Go(func() {
			list, err := w.read(ctx, m.Server, m.Identity)
			isKnown := err == nil
			if !isKnown {
				list, isKnown = before[cluster]
			}
			if isKnown {
				mu.Lock()
				defer mu.Unlock()
				after[cluster] = list
			}
		})
	}
	reads.Wait()
	if !reflect.DeepEqual(before, after) {
		w.lists.set(after)
		w.changed()
	}
}
