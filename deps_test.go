package holdfast

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/holdfast-dev/holdfast/"

// arrows contains the permitted imports between the packages of this module. A line has a package
// and the packages that it may import; "*" means all. An indented line continues the line before
// it. Each arrow has a user. Tests may also import internal/testenv/..., internal/hosttest,
// test/spcserver and test/fixture.
const arrows = `
api/v1alpha1:
pkg/autoscaler:
pkg/departure:
pkg/machine:
pkg/openstack:
pkg/printable:
pkg/protect: pkg/printable api/v1alpha1 pkg/autoscaler pkg/protect/evidence pkg/protect/observation
pkg/protect/evidence: api/v1alpha1
pkg/protect/guard: pkg/printable api/v1alpha1 pkg/departure pkg/protect/evidence pkg/protect/observation pkg/readiness
pkg/protect/membership: api/v1alpha1 pkg/protect/evidence pkg/protect/observation pkg/protect/quorum
pkg/protect/observation: pkg/printable api/v1alpha1 pkg/departure pkg/protect/evidence
pkg/protect/quorum: pkg/printable api/v1alpha1 pkg/departure pkg/protect/evidence pkg/protect/observation
pkg/protect/quorum/quorumtest: api/v1alpha1 pkg/departure pkg/protect/evidence pkg/protect/observation
  pkg/protect/quorum
pkg/protect/report: pkg/printable api/v1alpha1 pkg/departure pkg/protect pkg/protect/evidence pkg/protect/guard
  pkg/protect/observation
  pkg/protect/quorum pkg/readiness pkg/spc
pkg/readiness: pkg/printable pkg/autoscaler pkg/departure
pkg/spc: pkg/printable
internal/admission: pkg/printable pkg/machine pkg/protect/evidence pkg/protect/guard pkg/protect/observation
  pkg/protect/quorum
internal/agent: pkg/printable api/v1alpha1 pkg/autoscaler pkg/departure pkg/openstack pkg/protect pkg/protect/evidence
  pkg/protect/observation pkg/protect/quorum pkg/readiness pkg/spc internal/apiaccess internal/loop internal/nodepatch
internal/apiaccess:
internal/cli:
internal/clusterstore: api/v1alpha1 pkg/departure pkg/printable pkg/protect/observation pkg/protect/quorum pkg/readiness
  internal/apiaccess internal/loop
internal/clusterstore/storetest: api/v1alpha1 pkg/departure pkg/protect/evidence pkg/protect/observation
  pkg/protect/quorum internal/clusterstore internal/testenv/apiserver internal/testenv/process
internal/deletion: api/v1alpha1 pkg/protect/evidence pkg/protect/observation pkg/protect/quorum pkg/readiness
  internal/apiaccess internal/clusterstore internal/loop
internal/etcdprobe: pkg/printable internal/loop internal/hostfs api/v1alpha1 pkg/protect/evidence
internal/guardpods: api/v1alpha1 pkg/departure pkg/protect/guard pkg/protect/observation internal/apiaccess
  internal/clusterstore internal/loop
internal/holdwatch: internal/apiaccess internal/loop pkg/readiness internal/nodepatch
internal/datasearch: internal/hostfs internal/loop
internal/etcddetect: api/v1alpha1 pkg/protect/evidence internal/datasearch internal/hostfs internal/systemd
internal/host: internal/loop pkg/protect/evidence pkg/readiness internal/datasearch internal/etcddetect
  internal/hostfs internal/nodenet internal/systemd
internal/hostfs:
internal/hosttest:
internal/nodenet: pkg/printable pkg/readiness internal/hostfs internal/systemd
internal/systemd: internal/hostfs
internal/leader: pkg/printable api/v1alpha1 pkg/protect/evidence pkg/protect/observation pkg/protect/quorum
  pkg/protect/membership internal/clusterstore internal/loop
internal/loop:
internal/metricsserver: internal/loop
internal/machinehook: api/v1alpha1 pkg/machine pkg/protect/observation internal/apiaccess internal/loop
internal/nodepatch: pkg/readiness internal/apiaccess
internal/plugin: api/v1alpha1 pkg/departure pkg/protect/guard pkg/protect/observation pkg/protect/quorum
  pkg/protect/report pkg/readiness internal/cli internal/loop internal/nodepatch internal/uninstall
internal/servingcert: internal/loop
internal/simulation: api/v1alpha1 pkg/departure pkg/protect/guard pkg/protect/evidence pkg/protect/observation
  pkg/protect/quorum pkg/protect pkg/machine internal/admission internal/clusterstore
  internal/deletion internal/leader internal/machinehook
internal/spcapi: pkg/printable internal/loop internal/hostfs pkg/spc
internal/uninstall: internal/nodepatch pkg/autoscaler pkg/departure pkg/machine pkg/openstack pkg/protect
  pkg/protect/guard pkg/protect/observation pkg/protect/quorum pkg/readiness pkg/spc
internal/testenv/apiserver: internal/testenv/etcd internal/testenv/loopback internal/testenv/pki
  internal/testenv/process
internal/testenv/etcd: internal/testenv/fakehost internal/testenv/loopback internal/testenv/pki
  internal/testenv/process
internal/testenv/fakehost: internal/testenv/pki internal/testenv/process
internal/testenv/hostiletext:
internal/testenv/hostnet: internal/testenv/loopback
internal/testenv/loopback:
internal/testenv/pki:
internal/testenv/process:
cmd/agent: *
cmd/guard:
cmd/kubectl-holdfast: internal/cli internal/plugin
cmd/webhook: *
manifests: api/v1alpha1 pkg/machine pkg/protect/guard pkg/readiness internal/guardpods
test/bench: *
test/bench/watcher:
test/demo: *
test/drainers: pkg/machine pkg/protect/guard
test/e2e: api/v1alpha1 pkg/autoscaler pkg/protect pkg/protect/guard pkg/protect/observation pkg/protect/quorum
  pkg/readiness
test/e2e/echo:
test/fixture: internal/testenv/apiserver internal/testenv/etcd internal/testenv/hostnet
  internal/testenv/loopback internal/testenv/process
test/spcserver: pkg/spc
test/spcserver/cmd: pkg/spc test/spcserver
test/stress: *
test/versions: internal/testenv/process
`

// allowedImports returns the arrows by package.
func allowedImports() map[string][]string {
	allowed := map[string][]string{}
	from := ""
	for _, word := range strings.Fields(arrows) {
		if name, isPackage := strings.CutSuffix(word, ":"); isPackage {
			from = name
			allowed[from] = nil
			continue
		}
		allowed[from] = append(allowed[from], word)
	}
	return allowed
}

// pureImports lists the packages outside this module that pkg/... may import. None of them
// reads files, uses the network, waits, logs or needs a context.
func pureImports() []string {
	return []string{
		"cmp", "encoding/json", "errors", "fmt", "hash/fnv", "maps", "math", "net", "net/netip", "net/url", "regexp",
		"slices", "sort", "strconv", "strings", "time", "unicode", "unicode/utf8",
		"k8s.io/api/core/v1", "k8s.io/apimachinery/pkg/apis/meta/v1", "k8s.io/apimachinery/pkg/types",
		"k8s.io/apimachinery/pkg/util/resourceversion",
		"k8s.io/apimachinery/pkg/util/duration", "k8s.io/apimachinery/pkg/util/validation",
	}
}

func TestImports(t *testing.T) {
	graph := allowedImports()
	used := map[string]bool{} // by package and import
	for file, imports := range sources(t) {
		dir, test := path.Dir(file), strings.HasSuffix(file, "_test.go")
		allowed, known := graph[dir]
		if dir == "." || strings.HasPrefix(dir, "tools") {
			continue
		}
		if !test {
			require.True(t, known, "%s: package %s has no arrows; draw them in deps_test.go", file, dir)
		}
		for _, imported := range imports {
			ours, isOurs := strings.CutPrefix(imported, module)
			switch {
			case test && mayTestImport(dir, ours):
			case isOurs:
				used[dir+" "+ours] = true
				isAllowed := slices.Contains(allowed, "*") || slices.Contains(allowed, ours) || ours == dir
				require.True(t, isAllowed, "%s imports %s: no arrow points from %s to %s", file, imported, dir, ours)
				servesTests := test || isTestEnvironment(dir) || strings.HasPrefix(dir, "test/") || path.Base(dir) == "storetest"
				require.True(t, servesTests || !isTestEnvironment(ours), "%s imports the test environment", file)
			case strings.HasPrefix(dir, "pkg/") && !test && path.Base(dir) != "quorumtest":
				require.Contains(t, pureImports(), imported, "%s: %s is pure and may not import %s", file, dir, imported)
			}
		}
	}
	var unused []string
	for dir, allowed := range graph {
		for _, imported := range allowed {
			if imported != "*" && !used[dir+" "+imported] {
				unused = append(unused, dir+": "+imported)
			}
		}
	}
	slices.Sort(unused)
	require.Empty(t, unused, "no file needs these arrows; delete them in deps_test.go")
}

// TestAgentImports: the packages of the agent import neither the typed client nor
// controller-runtime. These contain all types of Kubernetes, and the agent runs on every node
// (docs/decisions.md, 20).
func TestAgentImports(t *testing.T) {
	imports := map[string][]string{}
	for file, all := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			imports[path.Dir(file)] = append(imports[path.Dir(file)], all...)
		}
	}
	seen := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		for _, imported := range imports[dir] {
			if ours, isOurs := strings.CutPrefix(imported, module); isOurs {
				visit(ours)
			}
			for _, large := range []string{"sigs.k8s.io/controller-runtime/", "k8s.io/client-go/kubernetes"} {
				require.False(t, strings.HasPrefix(imported, large), "%s, a part of the agent, imports %s", dir, imported)
			}
		}
	}
	visit("cmd/agent")
	require.True(t, seen["internal/nodepatch"])
}

// mayTestImport reports whether the tests of a package may import a package of this module for
// which there is no arrow.
func mayTestImport(dir, imported string) bool {
	switch {
	case isTestEnvironment(imported), strings.HasSuffix(imported, "/storetest"), imported == dir:
		return true
	case imported == "test/spcserver", imported == "test/fixture":
		return true
	case dir == "internal/plugin" && imported == "internal/leader": // the leader ends grants
		return true
	case strings.HasPrefix(dir, "pkg/protect"): // these packages share one fixture
		return strings.HasPrefix(imported, "pkg/protect")
	}
	isWebhook := slices.Contains([]string{"internal/admission", "internal/clusterstore", "internal/deletion"}, imported)
	return dir == "internal/leader" && imported == "internal/deletion" || dir == "internal/plugin" && isWebhook
}

// isTestEnvironment reports whether a package is part of the test environment.
func isTestEnvironment(dir string) bool {
	return strings.HasPrefix(dir, "internal/testenv/") || dir == "internal/hosttest"
}

// sources returns the imports of every Go file of this module, by slash-separated path.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (p == "tools" || p == "bin" || (strings.HasPrefix(d.Name(), ".") && p != ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		imports := []string{}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			imports = append(imports, imported)
		}
		found[filepath.ToSlash(p)] = imports
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}

// TestDependencies checks that docs/decisions.md explains each direct dependency.
func TestDependencies(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	decisions, err := os.ReadFile("docs/decisions.md")
	require.NoError(t, err)
	for line := range strings.Lines(string(mod)) {
		module, isRequired := strings.CutPrefix(line, "\t")
		if !isRequired || strings.Contains(line, "// indirect") {
			continue
		}
		module, _, _ = strings.Cut(module, " ")
		require.Contains(t, string(decisions), "`"+module+"`", "docs/decisions.md does not explain %s", module)
	}
}
