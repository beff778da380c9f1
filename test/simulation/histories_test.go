package simulation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

func TestMain(m *testing.M) {
	flag.Int("histories", 0, "number of random histories to play, in addition to the fixed ones")
	flag.Uint64("seed", 0, "play only the history of this seed and log it")
	flag.Int("shrink", 400, "number of shorter histories to try after a failure")
	flag.Bool("rewrite", false, "write the answers that TestTraces receives into the traces")
	flag.Int("steps", 250, "number of steps of a history")
	flag.String("with", "", "features that every history has, separated by commas, for example attacks,reboots")
	flag.String("without", "", "features that no history has, separated by commas")
	flag.Duration("within", 0, "time after which no further random history begins; 0 for no limit")
	debug.SetGCPercent(2000) // histories are short-lived, and little of them is alive at a time
	// The last handler of client-go pauses by the time of the last error, which may be that of another
	// history: its clock may be days ahead, and the pause too.
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

func flagValue[T any](name string) T {
	value, _ := flag.Lookup(name).Value.(flag.Getter).Get().(T)
	return value
}

// A historyResult is the result of one history.
type historyResult struct {
	failure string
	trace   []string
	taken   []int
	// counts has what happened, and how often, to show how much the histories cover.
	counts map[string]int
}

// A historyKind is a kind of histories: it picks their profiles.
type historyKind func(*choices) profile

// play plays one history.
func (k historyKind) play(t *testing.T, c *choices, steps int, verbose bool) historyResult {
	var o historyResult
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t.Context(), c, k(c), verbose)
		if sim.profile.settled {
			sim.advance(10 * time.Second)
		}
		sim.run(steps)
		if sim.profile.recovers && !sim.hasFailed() {
			sim.checkRecovery()
		}
		sim.stop()
		o = historyResult{failure: sim.failure, trace: sim.trace, taken: slices.Clone(c.taken), counts: sim.counts}
	})
	return o
}

// TestHistories plays random histories of all kinds.
func TestHistories(t *testing.T) { historyKind(anyProfile).playAll(t, 50) }

// TestHistoriesWithDrains plays random histories in which programs drain the nodes of etcd, and
// reboot or remove their machines.
func TestHistoriesWithDrains(t *testing.T) { historyKind(drainProfile).playAll(t, 20) }

// TestHistoriesWithMachines plays random histories in which Cluster API or Karpenter ends machines,
// because their Machines or NodeClaims are deleted.
func TestHistoriesWithMachines(t *testing.T) { historyKind(machineProfile).playAll(t, 20) }

// progressInterval is the number of histories after which a line tells how many were played.
const progressInterval = 1000

// playAll plays the fixed histories and random ones, or the one of the flag -seed.
func (k historyKind) playAll(t *testing.T, fixed int) {
	steps := flagValue[int]("steps")
	if seed := flagValue[uint64]("seed"); seed != 0 {
		o := k.play(t, fromSeed(seed), steps, true)
		t.Log(strings.Join(o.trace, "\n"))
		if o.failure != "" {
			k.report(t, fmt.Sprint("seed ", seed), o, steps)
		}
		return
	}
	const lanes = 4
	random, within, begun := flagValue[int]("histories"), flagValue[time.Duration]("within"), time.Now()
	first := rand.Uint64() | 1<<63
	t.Logf("%d fixed histories, %d random ones with seeds from %d", fixed, random, first)
	var played atomic.Int64
	var hasFailed atomic.Bool // the other lanes end too
	var mu sync.Mutex
	total := map[string]int{}
	for lane := range lanes {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			for i := lane; i < fixed+random; i += lanes {
				seed := uint64(i + 1)
				if i >= fixed {
					seed = first + uint64(i)
				}
				if hasFailed.Load() || (i >= fixed && within > 0 && time.Since(begun) > within) {
					return
				}
				if n := played.Add(1); n%progressInterval == 0 {
					t.Logf("%d histories in %s", n, time.Since(begun).Round(time.Second))
				}
				o := k.play(t, fromSeed(seed), steps, false)
				mu.Lock()
				for what, times := range o.counts {
					total[what] += times
				}
				mu.Unlock()
				if o.failure != "" {
					hasFailed.Store(true)
					k.report(t, fmt.Sprint("seed ", seed), o, steps)
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		t.Logf("%d histories in %s: %v", played.Load(), time.Since(begun).Round(time.Second), total)
	})
}

// report shortens a failed history and prints it.
func (k historyKind) report(t *testing.T, name string, o historyResult, steps int) {
	t.Helper()
	short := k.shrink(t, o, steps)
	t.Errorf("the shortest history that fails:\n%s", strings.Join(short.trace, "\n"))
	t.Errorf("%s: %s\nreplay with -run %s -seed N", name, short.failure, testName(t))
}

// testName returns the name of the test without that of its part.
func testName(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name + "$"
}

// shrink removes choices, or sets them to zero, as long as the history still fails.
func (k historyKind) shrink(t *testing.T, o historyResult, steps int) historyResult {
	best, taken, tries := o, o.taken, 0
	fails := func(candidate []int) bool {
		tries++
		next := k.play(t, replay(candidate), steps, false)
		if next.failure != "" {
			best, taken = next, candidate
		}
		return next.failure != ""
	}
	for size := len(taken) / 2; size > 0; size /= 2 {
		for at := 0; at < len(taken) && tries < flagValue[int]("shrink"); {
			end := min(at+size, len(taken))
			zeroed := slices.Clone(taken)
			clear(zeroed[at:end])
			switch {
			case fails(slices.Concat(taken[:at], taken[end:])):
			case slices.Equal(zeroed, taken), fails(zeroed), true:
				at = end
			}
		}
	}
	return best
}

// A choices is the only source of random decisions. The first option of each decision is
// the harmless one, so that a history ends calmly when its recorded choices run out.
type choices struct {
	next  func(n int) int
	taken []int
}

func fromSeed(seed uint64) *choices {
	random := rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15))
	return &choices{next: random.IntN}
}

// replay repeats the recorded choices, and then always picks the first option.
func replay(taken []int) *choices {
	i := -1
	return &choices{next: func(n int) int {
		if i++; i >= len(taken) {
			return 0
		}
		return taken[i] % n
	}}
}

// pick returns one of the numbers below n.
func (c *choices) pick(n int) int {
	if n <= 1 {
		return 0
	}
	i := c.next(n)
	c.taken = append(c.taken, i)
	return i
}

// oneIn returns true in one of n cases.
func (c *choices) oneIn(n int) bool { return c.pick(n) == n-1 }
