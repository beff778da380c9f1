// Package datasearch finds the data of etcd members on the local disks of a host.
//
// A stopped member leaves nothing but its data. The text that would start it again can be in any
// language: a unit, a script, a container that was made before. So the search walks the file
// systems and looks for the files of etcd's write-ahead log, whose names no other program uses.
// walk.go is the walk, mounts.go selects the file systems that it enters.
//
// A walk takes seconds to minutes, so it runs in a goroutine of its own, beside all scans: Run
// searches, and Latest returns the last result. The search finds directories only. Package
// etcddetect reads whose data they contain.
package datasearch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

const (
	// minGap is the least time between the end of a search and the next one.
	minGap = 10 * time.Minute
	// mountInterval is how often the mounts are compared with those of the last search.
	mountInterval = time.Minute
	// hungAfter is how long after its limit a search counts as hung. A limit does not end a read
	// from a disk that does not answer.
	hungAfter = time.Minute
)

// Limits bound the searches of a host.
type Limits struct {
	// Interval is the time between two searches. If it is 0, there are none.
	Interval time.Duration
	// MaxTime and MaxDirectories end one search.
	MaxTime        time.Duration
	MaxDirectories int
}

// A Result is what one search found.
type Result struct {
	// LogDirs are the directories with files of etcd's write-ahead log, by their paths on the host,
	// sorted.
	LogDirs []string
	// ContainerDirs are the directories in which docker and podman describe their containers, sorted.
	ContainerDirs []string
	// Directories is how many directories were read, and Took how long that took.
	Directories int
	Took        time.Duration
	// Incomplete is why the search may have missed data, or "".
	Incomplete string
}

// A Search searches one host.
type Search struct {
	root   hostfs.Root
	limits Limits
	log    *slog.Logger
	wake   loop.Signal

	mu     sync.Mutex // guards latest and began
	latest *Result
	// began is when the search in progress began, or zero.
	began time.Time
}

// New returns a Search that does nothing before Run or Once.
func New(root hostfs.Root, limits Limits, log *slog.Logger) *Search {
	return &Search{root: root, limits: limits, log: log, wake: loop.NewSignal()}
}

// Latest returns the result of the last search, which is incomplete while a later one hangs.
// isPending is set before the first one has ended. Without searches, the result is empty.
func (s *Search) Latest() (result Result, isPending bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest == nil {
		return Result{}, s.limits.Interval > 0
	}
	result = *s.latest
	if !s.began.IsZero() && time.Since(s.began) > s.limits.MaxTime+hungAfter {
		result.Incomplete = fmt.Sprintf("it has hung since %s; check for a disk that does not answer",
			s.began.UTC().Format(time.RFC3339))
	}
	return result, false
}

// Wake makes Run search again, but not within ten minutes of the last search.
func (s *Search) Wake() { s.wake.Notify() }

// Run searches until ctx ends: at once, at the interval, and after Wake. After a mount it searches
// only the new file system, because container engines mount one for each container. It calls notify
// after each search. It keeps its thread, which has the lowest priority for the CPU and for I/O.
func (s *Search) Run(ctx context.Context, notify func()) error {
	if s.limits.Interval == 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	runtime.LockOSThread() // and not unlocked, so that the thread ends with this goroutine
	lowerPriority()
	for {
		mounts := ReadMounts(s.root)
		searched := mounts.searched()
		s.searchAndNotify(ctx, mounts, searched, notify)
		for ended := time.Now(); ; {
			isDue, err := s.await(ctx, ended)
			if err != nil {
				return err
			}
			if isDue {
				break
			}
			mounts := ReadMounts(s.root)
			if mounts.Err != nil {
				continue // It is not known what is mounted.
			}
			before := searched
			searched = mounts.searched()
			isOld := func(m mount) bool { return slices.Contains(before, m) }
			if added := slices.DeleteFunc(slices.Clone(searched), isOld); len(added) > 0 {
				s.searchAndNotify(ctx, mounts, added, notify)
			}
		}
	}
}

// await returns when the next search of all mounts is due, or earlier to compare the mounts. It
// returns the cause when ctx ends. ended is when the last search of all mounts ended.
func (s *Search) await(ctx context.Context, ended time.Time) (isDue bool, err error) {
	var wake <-chan struct{}
	if time.Since(ended) >= minGap {
		wake = s.wake
	}
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-wake:
		return true, nil
	case <-time.After(min(mountInterval, max(0, s.limits.Interval-time.Since(ended)))):
		return time.Since(ended) >= s.limits.Interval, nil
	}
}

func (s *Search) searchAndNotify(ctx context.Context, mounts Mounts, searched []mount, notify func()) {
	if result := s.search(ctx, mounts, searched, true); ctx.Err() == nil {
		s.log.InfoContext(ctx, "searched the local disks for data of etcd", "found", len(result.LogDirs),
			"directories", result.Directories, "took", result.Took, "incomplete", result.Incomplete)
		notify()
	}
}

// Once searches without pauses, for a caller that waits. Latest then returns the same result.
func (s *Search) Once(ctx context.Context) Result {
	mounts := ReadMounts(s.root)
	return s.search(ctx, mounts, mounts.searched(), false)
}

// search searches some of the mounts and replaces the last result. The findings of an earlier
// search stay if this one is incomplete or leaves mounts out, and so do its gaps if mounts are left
// out.
func (s *Search) search(ctx context.Context, mounts Mounts, searched []mount, isPaced bool) Result {
	began := time.Now()
	s.mu.Lock()
	s.began = began
	s.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, s.limits.MaxTime)
	defer cancel()
	w := &walker{
		root: s.root, mounts: mounts, maxDirectories: s.limits.MaxDirectories,
		isPaced: isPaced, used: threadCPU(),
	}
	w.walkMounts(limited, searched)
	result := w.Result
	result.Took, result.Incomplete = time.Since(began), w.incomplete()
	if limited.Err() != nil {
		result.Incomplete = fmt.Sprintf("it ended after %s, which is its limit (--data-search-max-time)", s.limits.MaxTime)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = time.Time{}
	isPart := len(searched) < len(mounts.searched())
	if s.latest != nil && isPart {
		result.Incomplete = cmp.Or(result.Incomplete, s.latest.Incomplete)
	}
	if s.latest != nil && (isPart || result.Incomplete != "") {
		result.LogDirs = append(result.LogDirs, s.latest.LogDirs...)
		result.ContainerDirs = append(result.ContainerDirs, s.latest.ContainerDirs...)
	}
	for _, dirs := range []*[]string{&result.LogDirs, &result.ContainerDirs} {
		slices.Sort(*dirs)
		*dirs = slices.Compact(*dirs)
	}
	if ctx.Err() == nil {
		s.latest = &result
	}
	return result
}

// lowerPriority gives this thread the lowest priority for the CPU, and the class "idle" for I/O
// (ioprio_set(2)). Where that is not permitted, the searches still pause.
func lowerPriority() {
	const ofThread, idleClass = 1, 3 << 13
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ofThread, uintptr(unix.Gettid()), idleClass)
}
