package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

func TestQuantiles(t *testing.T) {
	var hundred durations
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Millisecond)
	}
	require.Equal(t, 51*time.Millisecond, hundred.median())
	require.Equal(t, 100*time.Millisecond, hundred.p99())
	require.Equal(t, 100*time.Millisecond, hundred.quantile(1))
	require.Equal(t, 7*time.Millisecond, durations{7 * time.Millisecond}.p99())
	require.Zero(t, durations{}.median())
	require.InDelta(t, 3, durations{6, 9, 12}.ratioTo(durations{1, 3, 7}), 0.01)
}

func TestTable(t *testing.T) {
	var out strings.Builder
	results := &resultTable{out: &out}
	results.add(resultRow{what: "information"})
	results.add(resultRow{what: "good"}.judged(0.9, 1))
	results.add(resultRow{what: "bad"}.judged(1.1, 1))
	require.Equal(t, 1, results.print())
	long := strings.Repeat("a rather long text ", 12)
	results.add(resultRow{
		what: long, median: long, p99: "1234567.8 ms", ratio: "p99 ×1.15 (median ×2.00)", target: long, missed: true,
	})
	out.Reset()
	results.print()
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, len([]rune(line)), 121, line)
	}
	require.Equal(t, 36, strings.Count(out.String(), "rather"))
	require.Regexp(t, `(?m)^×0.90 +≤ ×1 +ok +good `, out.String())
	require.Regexp(t, `(?m)^×1.10 +≤ ×1 +MISSED +bad `, out.String())
	require.Equal(t, 1, strings.Count(out.String()[strings.Index(out.String(), "what "):], "ok"))
}

func TestAnswerLog(t *testing.T) {
	b := &benchCluster{Environment: &fixture.Environment{Dir: t.TempDir()}}
	file := filepath.Join(b.Dir, "webhook-1.log")
	line := `msg="node deletion allowed" node=etcd-1 dry_run=false path=/validate-etcd-node ` +
		`verdict=allowed reason=QuorumKept took=43.2ms message="x"` + "\n"
	text := "starting\n" + line + strings.Replace(line, "etcd-node", "node", 1)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	answers := answerLog{offsets: map[string]int{}}
	got, err := answers.readNew(b)
	require.NoError(t, err)
	require.Equal(t, []loggedAnswer{{"allowed", "QuorumKept", 43200 * time.Microsecond}}, got)
	got, err = answers.readNew(b)
	require.NoError(t, err)
	require.Empty(t, got)
	require.Equal(t, map[string]int{"allowed A": 2, "refused B": 1},
		countAnswers([]loggedAnswer{{"allowed", "A", 0}, {"refused", "B", 0}, {"allowed", "A", 0}}))
}

func TestVerdictSample(t *testing.T) {
	version := func(nonce string, ledger int64) *v1alpha1.EtcdCluster {
		return &v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{Nonce: nonce, Ledger: ledger}}
	}
	answer := func(nonce string) *v1alpha1.EtcdObservation {
		return &v1alpha1.EtcdObservation{Observation: v1alpha1.Observation{Nonce: nonce}}
	}
	before, asked := version("old", 3), version("new", 3)
	var j verdictSample
	j.record(0, before, before)
	j.recordAnswer(1, before, before, answer("old"))
	j.record(2, before, asked)
	j.recordAnswer(3, asked, before, answer("old"))
	j.recordAnswer(4, asked, before, answer("new"))
	j.recordAnswer(5, asked, before, answer("new"))
	j.record(6, before, version("new", 4))
	require.Equal(t, verdictSample{nonceAt: 2, observedAt: 4, grantedAt: 6}, j)
}

func TestParseScanCost(t *testing.T) {
	got, err := parseScanCost("goos: linux\n" +
		"BenchmarkFindings-2   \t      20\t  80077876 ns/op\t        20.35 cpu-ms/op\nPASS\n")
	require.NoError(t, err)
	require.Equal(t, 20350*time.Microsecond, got)
	_, err = parseScanCost("PASS\n")
	require.ErrorContains(t, err, "no cpu-ms/op")
}

func TestReleaseTimes(t *testing.T) {
	signal := time.Now()
	patch := func(node string, after time.Duration, subresource string) apiserver.Request {
		return apiserver.Request{
			Node: node, Verb: "patch", Resource: "nodes", Subresource: subresource, Code: 200,
			Answered: signal.Add(after),
		}
	}
	requests := []apiserver.Request{
		patch("a", -time.Second, "status"), patch("b", 3*time.Millisecond, ""), patch("a", 7*time.Millisecond, ""),
		patch("a", 9*time.Millisecond, "status"),
	}
	got, err := releaseTimes(map[string]time.Time{"a": signal}, requests)
	require.NoError(t, err)
	require.Equal(t, durations{7 * time.Millisecond}, got)
	for what, wrong := range map[string]apiserver.Request{
		"no release of node c": patch("a", time.Millisecond, ""),
		"is not its release":   patch("c", time.Millisecond, "status"),
	} {
		_, err = releaseTimes(map[string]time.Time{"c": signal}, append(requests, wrong))
		require.ErrorContains(t, err, what)
	}
}

func TestParseMemory(t *testing.T) {
	got, err := parseMemory("00400000-7fff0000 ---p 00000000 00:00 0    [rollup]\n" +
		"Rss:   28672 kB\nPss:   9000 kB\nAnonymous:  7680 kB\nLazyFree:  0 kB\n")
	require.NoError(t, err)
	require.Equal(t, memoryUsage{resident: 28 << 20, anonymous: 7680 << 10}, got)
	require.Equal(t, "28.0 MiB, anonymous 7.5", got.String())
	_, err = parseMemory("Rss:  1 kB\n")
	require.ErrorContains(t, err, "missing Rss or Anonymous")
}

// TestRealisticNode: a Node with its images is as large as those of real clusters.
func TestRealisticNode(t *testing.T) {
	body, err := json.Marshal(realisticNode("worker-1"))
	require.NoError(t, err)
	require.InDelta(t, 12<<10, len(body), 1<<10)
}

func TestReadPeakMemory(t *testing.T) {
	peak, err := readPeakMemory(os.Getpid())
	require.NoError(t, err)
	now, err := readMemory(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, peak, now.resident/2)
	_, err = readPeakMemory(0)
	require.Error(t, err)
}

func TestCountRequests(t *testing.T) {
	since := time.Now()
	request := func(verb, resource, subresource string, after time.Duration) apiserver.Request {
		return apiserver.Request{Verb: verb, Resource: resource, Subresource: subresource, Answered: since.Add(after)}
	}
	require.Equal(t, "3: 2 get nodes, 1 patch etcdclusters/status", countRequests([]apiserver.Request{
		request("list", "nodes", "", -time.Second), request("get", "nodes", "", time.Second),
		request("patch", "etcdclusters", "status", time.Second), request("get", "nodes", "", time.Minute),
	}, since))
}
