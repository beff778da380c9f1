package clusterstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxWatchAge is the time after which a watch that has delivered nothing may hang. The API server
	// sends a bookmark about once a minute, and kubelets and the leader write at least every few.
	maxWatchAge = 2 * time.Minute
	// noteEvery is how often WatchAges notes what the watches have delivered.
	noteEvery = 20 * time.Second
)

// A watchAge knows when a watch has last delivered an event or a bookmark. Each of them has a later
// resourceVersion. While the age is not known to be below maxWatchAge, the content of the cache is
// not known to be that of the API server, and is read from there.
type watchAge struct {
	// version returns the resourceVersion of the last event or bookmark.
	version func() string

	mu    sync.Mutex // guards the fields below
	seen  string
	noted time.Time
	moved time.Time
}

func newWatchAge(version func() string) *watchAge {
	return &watchAge{version: version, noted: time.Now()}
}

// openAge returns the age of the watch of a kind of objects.
func openAge(ctx context.Context, from cache.Cache, kind client.Object) (*watchAge, error) {
	informer, err := from.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("opening the informer for %T: %w", kind, err)
	}
	versioned, ok := informer.(interface{ LastSyncResourceVersion() string })
	if !ok {
		return nil, fmt.Errorf("opening the informer for %T: %T has no version", kind, informer)
	}
	return newWatchAge(versioned.LastSyncResourceVersion), nil
}

// isCurrent reports whether the watch has delivered something within maxWatchAge.
func (a *watchAge) isCurrent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if version := a.version(); version != a.seen {
		a.seen, a.moved = version, a.noted // It may have been delivered just after the last note.
	}
	a.noted = time.Now()
	return a.noted.Sub(a.moved) < maxWatchAge
}

// WatchAges notes what the watches deliver until ctx ends, and then returns nil as the runnables of
// the manager do. Without it, only reads of the cache note that.
func (s *Store) WatchAges(ctx context.Context) error {
	ticker := time.NewTicker(noteEvery)
	defer ticker.Stop()
	for {
		s.nodesAge.isCurrent()
		s.clustersAge.isCurrent()
		s.observationsAge.isCurrent()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// currentOr returns what live reads unless the watches of the cache are current. If that fails, the
// cache is the best that is known.
func currentOr[T any](
	ctx context.Context, isCurrent bool, live func(context.Context) (T, error), cached func() (T, error),
) (T, error) {
	if !isCurrent {
		reading, cancel := context.WithTimeout(ctx, timeLeft(ctx)/2)
		defer cancel()
		if found, err := live(reading); err == nil {
			return found, nil
		}
	}
	return cached()
}
