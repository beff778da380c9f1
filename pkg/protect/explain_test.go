package protect

import (
	"math/rand"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// TestStepsThatAreSaidToHelpDo takes the refusals of random clusters at their word.
func TestStepsThatAreSaidToHelpDo(t *testing.T) {
	out := regexp.MustCompile(`\(with (.*) out of the list, this deletion is allowed\)`)
	first := regexp.MustCompile(`take what it holds out of the cluster first \(etcd checks that it can\): (.*)`)
	join := regexp.MustCompile(`let (\d) more members? join first`)
	ids := regexp.MustCompile(`[( ]([0-9a-f])\b[),]?`)
	tried := map[string]int{}
	r := rand.New(rand.NewSource(3))
	for range 800 {
		n := 1 + r.Intn(7)
		w := voters(n)
		w.MinRemainingTolerance = r.Intn(8) / 7
		for i := range n {
			switch r.Intn(6) {
			case 0:
				w.dead(i)
			case 1:
				w.granted(i)
			case 2:
				w.learner(i)
			}
		}
		before := Decide(w.View, deletion(0))
		if before.Allowed {
			continue
		}
		if said := join.FindStringSubmatch(before.Message); said != nil {
			tried["join"]++
			more := &world{copyOf(w.View)}
			for i := range int(said[1][0] - '0') {
				for o := range more.Cluster.Status.Observations {
					list := &more.Cluster.Status.Observations[o]
					list.Members = append(list.Members, member(n+i))
				}
			}
			require.True(t, Decide(more.View, deletion(0)).Allowed, "%s\nwith %s more", before.Message, said[1])
		}
		for name, words := range map[string]*regexp.Regexp{"out": out, "first": first} {
			said := words.FindStringSubmatch(before.Message)
			if said == nil {
				continue
			}
			tried[name]++
			less := &world{copyOf(w.View)}
			for _, m := range ids.FindAllStringSubmatch(said[1], -1) {
				less.removed(strings.Index("abcdef123456789", m[1]))
			}
			require.True(t, Decide(less.View, deletion(0)).Allowed, "%s\nwithout %s", before.Message, said[1])
		}
	}
	require.Greater(t, min(tried["join"], tried["out"], tried["first"]), 20, "%v", tried)
	require.NotContains(t, Decide(voters(3).dead(1).View, deletion(0)).Message, "this deletion is allowed)", "two would be left of two")
}

func TestNamesArePrintedAsTheyAre(t *testing.T) {
	w := voters(4).dead(1).everywhere(1, func(m *v1alpha1.MemberStatus) { m.Name = "50%d%s" })
	message := Decide(w.View, deletion(0)).Message
	require.Contains(t, message, "while 50%d%s (b) is in its member list")
	require.NotContains(t, message, "%!")
}

func TestLongReasonsAreClipped(t *testing.T) {
	w := voters(3).everywhere(1, func(m *v1alpha1.MemberStatus) {
		m.Healthy, m.Reason = false, strings.Repeat("dial tcp:\n refused ", 50)
	})
	for line := range strings.SplitSeq(Decide(w.View, deletion(0)).Message, "\n") {
		require.Less(t, len(line), 300)
	}
}
