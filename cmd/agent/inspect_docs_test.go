package main

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// The page describes the output of inspect, and links to the samples. TestInspectSamples writes
// these if UPDATE_GOLDEN is set in the environment.
const (
	inspectPage    = "../../docs/inspect.md"
	inspectText    = "testdata/inspect.txt"
	inspectJSON    = "testdata/inspect.json"
	inspectVerbose = "testdata/inspect_verbose.txt"
)

// sampleReport is the report of a control-plane host whose cluster has an unhealthy member.
func sampleReport() report {
	hasData := true
	member := func(i int, id v1alpha1.MemberID) v1alpha1.MemberStatus {
		return v1alpha1.MemberStatus{
			ID: id, Name: fmt.Sprint("etcd", i), Healthy: true,
			PeerURLs:   []string{fmt.Sprintf("https://192.0.2.1%d:2380", i)},
			ClientURLs: []string{fmt.Sprintf("https://192.0.2.1%d:2379", i)},
		}
	}
	members := []v1alpha1.MemberStatus{
		member(1, "133637ab6426f0a7"), member(2, "2126299bdb9b68c6"), member(3, "8d6e83ffcd8bb388"),
	}
	members[2].Healthy, members[2].Reason = false, "https://192.0.2.13:2379: connection refused"
	ref := evidence.MemberRef{Cluster: "2e7e07d88609114b", Member: members[0].ID}
	var found evidence.FoundServer
	found.Source, found.Unit, found.PID = evidence.SystemdUnit, "etcd.service", 812
	found.Where, found.Distribution = "systemd unit etcd.service", v1alpha1.DistributionKubespray
	found.Config = evidence.Config{
		Name: "etcd1", DataDir: "/var/lib/etcd", File: "/etc/etcd.env", ListenClientURLs: []string{"https://192.0.2.11:2379"},
		AdvertiseClientURLs: []string{"https://192.0.2.11:2379"}, InitialPeerURLs: []string{"https://192.0.2.11:2380"},
	}
	found.HasData = &hasData
	const keys = "/etc/ssl/etcd/ssl/"
	found.Credentials = []evidence.Credential{{
		CA: keys + "ca.pem", Cert: keys + "admin-cp-1.pem", Key: keys + "admin-cp-1-key.pem",
		Origin: "ETCDCTL_CERT in /etc/etcd.env",
	}}
	found.Ref, found.Name = ref, "etcd1"
	observation := v1alpha1.Observation{
		Time:        metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
		LocalMember: ref.Member, Leader: members[1].ID, Linearizable: true, Members: members,
		Access: &v1alpha1.Access{
			Distribution: v1alpha1.DistributionKubespray, Endpoint: "https://192.0.2.11:2379",
			CACert: keys + "ca.pem", Cert: keys + "admin-cp-1.pem", Key: keys + "admin-cp-1-key.pem",
		},
	}
	network := readiness.Facts{BootID: bootID(1)}
	network.Conflist = readiness.Conflist{
		Directory: "/etc/cni/net.d", Path: "/etc/cni/net.d/10-flannel.conflist", Name: "cbr0", Presence: readiness.Present,
		Plugins: []readiness.Plugin{
			{Type: "flannel", Executable: readiness.Present},
			{Type: "bridge", NeededBy: "flannel", Executable: readiness.Present},
		},
	}
	network.Subnet = readiness.SubnetFile{Path: "/run/flannel/subnet.env", Presence: readiness.Absent}
	network.Marker = readiness.Marker{Path: "/run/holdfast/network_plugin.done", Presence: readiness.Absent}
	r := report{
		Version: reportVersion, Network: network,
		Host: hostReport{Name: "cp-1", Root: "/", BootID: network.BootID},
		Etcd: etcdReport{Found: []foundReport{{FoundServer: found, Observation: &observation}}},
	}
	var options inspectFlags
	options.staticPods = true
	r.Decision = r.decide(options)
	r.Result, r.Conclusion = r.Decision.conclude()
	return r
}

// TestInspectSamples compares the samples with the output: text, the rows that -v adds, and JSON.
func TestInspectSamples(t *testing.T) {
	var text, verbose, json bytes.Buffer
	r := sampleReport()
	require.NoError(t, r.writeText(&text, false))
	require.NoError(t, r.writeText(&verbose, true))
	require.NoError(t, r.writeJSON(&json))
	var added strings.Builder
	lines := strings.SplitAfter(text.String(), "\n")
	for line := range strings.Lines(verbose.String()) {
		if !slices.Contains(lines, line) {
			added.WriteString(line)
		}
	}
	for file, want := range map[string]string{
		inspectText: text.String(), inspectVerbose: added.String(), inspectJSON: json.String(),
	} {
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		}
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

// TestInspectPage checks that the page and the help describe every result, and the page
// every key of the JSON.
func TestInspectPage(t *testing.T) {
	page, err := os.ReadFile(inspectPage)
	require.NoError(t, err)
	for _, result := range []reportResult{resultHoldsEtcd, resultEtcdUnknown, resultStaysHeld, resultClear} {
		require.Contains(t, string(page), fmt.Sprintf("| %d | `%s` |", result.exitCode(), result))
		require.Regexp(t, fmt.Sprintf(`(?m)^ +%d  `, result.exitCode()), inspectUsage)
	}
	words := map[string]bool{}
	withoutSamples := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(page), "")
	for _, code := range regexp.MustCompile("`[^`]+`").FindAllString(withoutSamples, -1) {
		for _, word := range regexp.MustCompile(`\w+`).FindAllString(code, -1) {
			words[word] = true
		}
	}
	keys := map[string]bool{}
	addJSONKeys(reflect.TypeFor[report](), keys)
	require.Greater(t, len(keys), 60)
	for key := range keys {
		require.True(t, words[key], "the page does not describe the key %s", key)
	}
}

// addJSONKeys adds the keys of the JSON of a type.
func addJSONKeys(of reflect.Type, keys map[string]bool) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		addJSONKeys(of.Elem(), keys)
	case reflect.Struct:
		for _, field := range reflect.VisibleFields(of) {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if key != "" && key != "-" && len(field.Index) == 1 {
				keys[key] = true
				addJSONKeys(field.Type, keys)
			} else if field.Anonymous && key == "" && field.IsExported() {
				addJSONKeys(field.Type, keys)
			}
		}
	default:
	}
}
