package history

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestMain(m *testing.M) {
	flag.Int("histories", 0, "how many random histories to play, besides the fixed ones")
	flag.Uint64("seed", 0, "play the history of this seed alone, and tell it in full")
	flag.Int("shrink", 400, "how many shorter histories to try when one has failed")
	flag.Int("steps", 250, "how many steps a history has")
	debug.SetGCPercent(400) // histories are short-lived
	os.Exit(m.Run())
}

// setting returns the value of a flag.
func setting[T any](name string) T {
	value, _ := flag.Lookup(name).Value.(flag.Getter).Get().(T)
	return value
}

// outcomeOf is what came of a history.
type outcomeOf struct {
	failure string
	trace   []string
	taken   []int
	tally   tally
}

// tally counts what a history has tried, to see that histories are worth something.
type tally struct{ allowed, refused, deleted, healed int }

// play plays one history.
func play(t *testing.T, c *choices, steps int, verbose bool) outcomeOf {
	var o outcomeOf
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t.Context(), c, anyProfile(c), verbose)
		w.run(steps)
		if w.profile.heals && !w.failed() {
			w.heals()
		}
		w.end()
		o = outcomeOf{failure: w.failure, trace: w.trace, taken: slices.Clone(c.taken), tally: w.tally}
	})
	return o
}

func TestHistories(t *testing.T) {
	steps := setting[int]("steps")
	if seed := setting[uint64]("seed"); seed != 0 {
		o := play(t, fromSeed(seed), steps, true)
		t.Log(strings.Join(o.trace, "\n"))
		if o.failure != "" {
			report(t, fmt.Sprint("seed ", seed), o, steps)
		}
		return
	}
	const fixed, lanes = 50, 4
	random := setting[int]("histories")
	first := rand.Uint64() | 1<<63
	t.Logf("%d fixed histories, %d random ones from seed %d on", fixed, random, first)
	var allowed, refused, deleted, healed atomic.Int64
	for lane := range lanes {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			for i := lane; i < fixed+random; i += lanes {
				seed := uint64(i + 1)
				if i >= fixed {
					seed = first + uint64(i)
				}
				o := play(t, fromSeed(seed), steps, false)
				allowed.Add(int64(o.tally.allowed))
				refused.Add(int64(o.tally.refused))
				deleted.Add(int64(o.tally.deleted))
				healed.Add(int64(o.tally.healed))
				if o.failure != "" {
					report(t, fmt.Sprint("seed ", seed), o, steps)
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		t.Logf("%d deletions allowed, %d refused, %d happened; %d worlds were mended and had one allowed",
			allowed.Load(), refused.Load(), deleted.Load(), healed.Load())
	})
}

// report makes a failed history shorter and tells it.
func report(t *testing.T, name string, o outcomeOf, steps int) {
	t.Helper()
	short := shrink(t, o, steps)
	t.Errorf("%s: %s\nreplay with -run Histories -seed N; the shortest history that fails:\n%s", name, short.failure, strings.Join(short.trace, "\n"))
}

// shrink leaves choices out, and makes them harmless, as long as the history still fails.
func shrink(t *testing.T, o outcomeOf, steps int) outcomeOf {
	best, taken, tries := o, o.taken, 0
	fails := func(candidate []int) bool {
		tries++
		next := play(t, replay(candidate), steps, false)
		if next.failure != "" {
			best, taken = next, candidate
		}
		return next.failure != ""
	}
	for size := len(taken) / 2; size > 0; size /= 2 {
		for at := 0; at < len(taken) && tries < setting[int]("shrink"); {
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

// FuzzHistories has a fuzzer look for the choices: go test -fuzz Histories.
func FuzzHistories(f *testing.F) {
	for seed := range uint64(4) {
		random := rand.NewChaCha8([32]byte{byte(seed)})
		data := make([]byte, 600)
		_, _ = random.Read(data) // ChaCha8 never fails
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if o := play(t, fromBytes(data), min(len(data), 250), false); o.failure != "" {
			t.Errorf("%s\n%s", o.failure, strings.Join(o.trace, "\n"))
		}
	})
}
