package main

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// runInspect runs `holdfast-agent inspect`, which must succeed, and returns its output.
func runInspect(t *testing.T, args ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	require.Zero(t, execute(t.Context(), append([]string{"inspect"}, args...), &out, &errOut), errOut.String())
	require.Empty(t, errOut.String())
	return out.String()
}

func TestInspectRunningMember(t *testing.T) {
	etcd := etcd.New(t, etcd.Options{Members: 3, TLS: true, BootID: func(int) string { return "boot-1" }})
	member := etcd.Member(1)
	writeHostFile(t, member.Root, "etc/cni/net.d/10-flannel.conflist", `{"name":"cbr0","plugins":[{"type":"flannel"}]}`)
	require.NoError(t, etcd.Member(3).Kill())

	text := runInspect(t, "--host-root="+member.Root, "-v")
	for _, line := range []string{
		"This host holds an etcd member; deleting its node would be refused. A held node would stay held (WaitingForCNI).\n",
		"  boot ID            boot-1\n",
		"  server             systemd unit etcd.service, process " + strconv.Itoa(member.PID()) + "\n",
		"    source           SystemdUnit\n",
		"    name             etcd1\n",
		"    answer           member etcd1 (" + member.HexID() + ") of cluster ",
		"    plugins          flannel: missing\n",
		"  protect the node   yes: etcd member etcd1",
		"    label            " + observation.EtcdMemberLabel + "=true\n",
		"  delete the node    refused from the view of this host (QuorumWouldBeLost): ",
		"2 of 3 voters must be healthy, and only 1 would remain\n",
		"  release if held    no: waiting for CNI plugins",
		"    gate flannel     closed, waiting for flannel's subnet file /run/flannel/subnet.env\n",
	} {
		require.Contains(t, text, line)
	}
	for i := range 3 {
		state := map[bool]string{true: "not confirmed healthy: ", false: "healthy"}[i == 2]
		require.Regexp(t, etcd.Member(i+1).HexID()+" +etcd.* "+state, text)
	}
	require.NotContains(t, text, "  unknown ")
	require.NotContains(t, text, "break-glass", "advice for a person whose request was refused")

	require.Contains(t, runInspect(t, "--host-root="+member.Root, "--ask-etcd=false"), "not probed")

	require.NoError(t, os.Remove(filepath.Join(member.Root, "proc", strconv.Itoa(member.PID()))))
	text = runInspect(t, "--host-root="+member.Root)
	require.Contains(t, text,
		"  server             data directory /var/lib/etcd of systemd unit etcd.service, with no server running on it\n")
	require.Contains(t, text, "    answer           member etcd1 (", "a server without a visible process is not probed")
}

// newReadyHost returns the root of a host whose network works.
func newReadyHost(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	setBootID(t, root, "boot-1")
	writeHostFile(t, root, "etc/cni/net.d/1.conflist", `{"name":"x","plugins":[{"type":"ptp"}]}`)
	writeHostFile(t, root, "opt/cni/bin/ptp", "#!/bin/sh\n")
	return root
}

func TestInspectProbes(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/up" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	gate := "http:" + strings.TrimPrefix(server.URL, "http://")
	args := []string{"--host-root=" + newReadyHost(t), "--gates=" + gate + "/up," + gate + "/down"}
	text := runInspect(t, args...)
	require.Contains(t, text, "  probe              "+gate+"/up answers\n")
	require.Contains(t, text, "  probe              "+gate+"/down fails: it answers 503 Service Unavailable\n")
	require.Contains(t, text, "    gate "+gate+"/up open\n")
	require.Contains(t, text, "closed, waiting for "+gate+"/down to answer with a 2xx status: it answers 503")
	encoded := strings.Join(strings.Fields(runInspect(t, append(args, "-o=json")...)), "")
	require.Contains(t, encoded, `"reason":"WaitingForProbe"`)
	require.Contains(t, encoded, `{"gate":"`+gate+`/up","answer":"present"}`)
	require.Contains(t, encoded, `{"gate":"`+gate+`/down","answer":"absent",`+
		`"problem":"itanswers503ServiceUnavailable","since":"`)
}

// TestInspectData has the data of a stopped member that nothing names, and a container of etcd.
func TestInspectData(t *testing.T) {
	const log = "srv/x/member/wal/0000000000000000-0000000000000000.wal"
	member := etcd.New(t, etcd.Options{}).Member(1)
	segment, err := os.Open(filepath.Join(member.DataDir(), strings.TrimPrefix(log, "srv/x/")))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, segment.Close()) })
	head := make([]byte, 512)
	_, err = io.ReadFull(segment, head)
	require.NoError(t, err)
	root := newReadyHost(t)
	writeHostFile(t, root, log, string(head))
	writeHostFile(t, root, "var/lib/docker/containers/1/config.v2.json", `{"Name":"/etcd","Path":"etcd"}`)
	text := runInspect(t, "--host-root="+root)
	require.Contains(t, text, "It is unknown whether this host holds an etcd member.")
	require.Contains(t, text, "  data               /srv/x, of member "+member.HexID()+" of cluster ")
	require.Contains(t, text, "container etcd may start etcd, and does not tell where its data is")
	require.NotContains(t, text, "member remove")
	text = runInspect(t, "--host-root="+root, "--data-search-max-directories=1")
	require.Contains(t, text, "it ended after 1 directories, which is its limit (--data-search-max-directories)")
	require.Contains(t, text, "It is unknown whether this host holds an etcd member.")
}

// TestInspectHungDisk: a disk that never answers does not hold up the report.
func TestInspectHungDisk(t *testing.T) {
	root := newReadyHost(t)
	writeHostFile(t, root, "data/x", "x")
	gate, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		t.Skipf("SKIPPED: a hung disk is not tested, because this test may not hold up other programs: %v", err)
	}
	defer func() { require.NoError(t, unix.Close(gate)) }() // the search goes on
	const opening = unix.FAN_OPEN_PERM | unix.FAN_ONDIR
	require.NoError(t, unix.FanotifyMark(gate, unix.FAN_MARK_ADD, opening, -1, filepath.Join(root, "data")))
	text := runInspect(t, "--host-root="+root)
	require.Contains(t, text, "the local disks, whose first search for data of etcd has not ended")
	require.Contains(t, text, "It is unknown whether this host holds an etcd member.")
}

func TestInspectExitCode(t *testing.T) {
	for name, test := range map[string]struct {
		prepare    func(root string)
		code       int
		conclusion string
		lines      []string
	}{
		"clear": {func(string) {}, 0, "This host holds no etcd member. A held node would be released.", []string{
			"  server             none found\n", "  protect the node   no: no etcd member is on this node\n",
			"  release if held    yes: ",
		}},
		"etcd": {func(root string) {
			writeHostFile(t, root, "etc/systemd/system/etcd.service",
				"[Service]\nExecStart=/usr/bin/etcd --data-dir=/var/lib/etcd\n")
			writeHostFile(t, root, "var/lib/etcd/member/snap/db", "")
		}, 10, "This host holds an etcd member; whether its node can be deleted is unknown. " +
			"A held node would be released.", nil},
		"unknown": {func(root string) {
			require.NoError(t, os.RemoveAll(filepath.Join(root, "proc")))
			require.NoError(t, os.Symlink("proc", filepath.Join(root, "proc")))
		}, 11, "It is unknown whether this host holds an etcd member. A held node would stay held (BootUnknown).", []string{
			"  boot ID            unknown", "  unknown            the process table",
			"  protect the node   unknown, so nothing changes: ", "  release if held    no: ",
		}},
		"stays held": {func(root string) {
			require.NoError(t, os.RemoveAll(filepath.Join(root, "opt")))
		}, 12, "This host holds no etcd member. A held node would stay held (WaitingForCNI).", nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := newReadyHost(t)
			test.prepare(root)
			var out, errOut bytes.Buffer
			args := []string{"inspect", "--host-root=" + root, "--exit-code"}
			require.Equal(t, test.code, execute(t.Context(), args, &out, &errOut), errOut.String())
			firstLine, _, _ := strings.Cut(out.String(), "\n")
			require.Equal(t, test.conclusion, firstLine)
			require.Empty(t, errOut.String())
			text := runInspect(t, "--host-root="+root) // its exit code is 0
			for _, want := range append(test.lines, test.conclusion) {
				require.Contains(t, text, want)
			}
			for _, word := range []string{"delete the node", "writes", "annotation"} {
				require.False(t, test.code != 10 && strings.Contains(text, word), text)
			}
		})
	}
}

func TestConcludeDeletion(t *testing.T) {
	for name, test := range map[string]struct {
		deletions []deletionReport
		want      string
	}{
		"no observation": {nil, "whether its node can be deleted is unknown"},
		"allowed":        {[]deletionReport{{Allowed: true}, {Allowed: true}}, "deleting its node would be allowed"},
		"one refused":    {[]deletionReport{{Allowed: true}, {}}, "deleting its node would be refused"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, decisionReport{Deletion: test.deletions}.concludeDeletion())
		})
	}
}

// TestConcludeDeletionOfSilentServer: one server has answered, and its cluster would lose nothing.
// The webhook refuses because of the other one.
func TestConcludeDeletionOfSilentServer(t *testing.T) {
	r := sampleReport()
	for i := range r.Etcd.Found[0].Observation.Members {
		r.Etcd.Found[0].Observation.Members[i].Healthy = true
	}
	var options inspectFlags
	require.Equal(t, "deleting its node would be allowed", r.decide(options).concludeDeletion())
	silent := evidence.Server{Source: evidence.Process, Where: "etcd process 9", PID: 9}
	r.Etcd.Found = append(r.Etcd.Found, foundReport{FoundServer: evidence.FoundServer{Server: silent}})
	require.Equal(t, "deleting its node would be refused", r.decide(options).concludeDeletion())
}

func TestInspectNetworkPluginLabel(t *testing.T) {
	root := newReadyHost(t)
	for _, label := range []string{"built-by=ansible", "built-by"} {
		text := runInspect(t, "--host-root="+root, "--network-plugin-label="+label)
		require.Contains(t, text, "  release if held    no: ")
		require.Contains(t, text, "/run/holdfast/network_plugin.done")
	}
}

func TestInspectOpenStack(t *testing.T) {
	const uuid, other = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11", "17ab3ae7-1a81-43e6-98ec-b6ffd04f91d3"
	root := newReadyHost(t)
	require.NotContains(t, runInspect(t, "--host-root="+root), "\nOpenStack\n")
	writeHostFile(t, root, "sys/class/dmi/id/product_name", "OpenStack Compute\n")
	writeHostFile(t, root, "sys/class/dmi/id/product_uuid", "0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11\n")
	writeHostFile(t, root, "etc/machine-id", "0fa7b6c263fa4d54ba5e5f3c5f4d1e11\n")
	text := runInspect(t, "--host-root="+root)
	require.Contains(t, text, "\nOpenStack\n  provider ID        unknown; set --provider-id=")
	require.Contains(t, text, "  Magnum             the IDs differ: the provider ID is not known")

	writeHostFile(t, root, "var/lib/cloud/data/instance-id", uuid+"\n")
	text = runInspect(t, "--host-root="+root)
	for _, line := range []string{
		"  provider ID        " + uuid + " (from cloud-init's instance ID)\n",
		"  system UUID        " + uuid + "\n", "  machine ID         " + uuid + "\n",
		"  Magnum             the IDs agree: all agree on " + uuid + "\n",
	} {
		require.Contains(t, text, line)
	}

	text = runInspect(t, "--host-root="+root, "--provider-id=openstack:///"+other)
	require.Contains(t, text, "  provider ID        "+other+" (from --provider-id)\n")
	require.Contains(t, text, "  Magnum             the IDs differ: ")
	require.Contains(t, text, "deletes no machine or another one")
}

func TestInspectUsageErrors(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":    {[]string{"--nod"}, "-nod"},
		"flag of run":     {[]string{"--node=a"}, "-node"},
		"output":          {[]string{"-o=yaml"}, "use text or json"},
		"argument":        {[]string{"all"}, "unexpected argument"},
		"root":            {[]string{"--host-root=/does/not/exist"}, "--host-root"},
		"relative path":   {[]string{"--cni-conf-dir=etc"}, "not an absolute path"},
		"gate":            {[]string{"--gates=moon"}, "moon"},
		"one certificate": {[]string{"--etcd-key=/a"}, "belong together"},
		"probe timeout":   {[]string{"--probe-timeout=1m"}, "--probe-timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			requireUsageError(t, append([]string{"inspect"}, test.args...), test.want)
			requireUsageError(t, append([]string{"inspect"}, test.args...), "Run `holdfast-agent inspect --help`")
		})
	}
}

func TestInspectHostRoot(t *testing.T) {
	for name, test := range map[string]struct{ create, want string }{
		"empty":      {"", "it has no proc"},
		"no proc":    {"etc", "it has no proc"},
		"no etc":     {"proc/1", "it has no etc"},
		"empty proc": {"etc proc", "its proc directory is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range strings.Fields(test.create) {
				require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
			}
			requireUsageError(t, []string{"inspect", "--host-root=" + root},
				"--host-root="+root+" is not the root of a host: "+test.want)
		})
	}
}

func TestInspectHelp(t *testing.T) {
	help := runInspect(t, "--help")
	new(inspectFlags).flagSet().VisitAll(func(f *flag.Flag) {
		if len(f.Name) > 1 {
			require.Contains(t, help, "--"+f.Name)
			return
		}
		require.Contains(t, help, "-"+f.Name+" ")
	})
}

func TestInspectWriteError(t *testing.T) {
	read, write := io.Pipe()
	require.NoError(t, read.Close())
	for _, output := range []string{"text", "json"} {
		err := inspect(t.Context(), []string{"-o", output, "--host-root=" + newReadyHost(t)}, write)
		require.ErrorContains(t, err, "writing the report")
	}
}
