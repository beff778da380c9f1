package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostsDir has the hosts that the pages about systems describe. The agent must find etcd on
// them, in internal/node/etcddetect and cmd/agent.
const hostsDir = "internal/node/etcddetect/testdata/hosts"

// TestSystems checks that the pages about systems are short, that the hosts of the tests have the
// paths, units, ports and reasons that a page says Holdfast finds, and that the commands of
// refusals are those that the code makes.
func TestSystems(t *testing.T) {
	t.Chdir(root)
	files, err := filepath.Glob("docs/systems/*.md")
	require.NoError(t, err)
	require.Len(t, files, 14)
	for _, file := range files {
		page := read(t, file)
		require.LessOrEqual(t, strings.Count(page, "\n"), 90, file)
		if filepath.Base(file) != "README.md" {
			requireOnHosts(t, file, page)
		}
		requireInMessages(t, file, page)
	}
}

// requireOnHosts requires each fact of the section "Detection" on one of the hosts that
// the page names: `<!-- hosts: NAME, NAME -->`. A page without hosts names no such fact.
func requireOnHosts(t *testing.T, file, page string) {
	t.Helper()
	_, section, found := strings.Cut(page, "## Detection\n")
	require.True(t, found, file)
	section, _, _ = strings.Cut(section, "\n## ")
	var hosts strings.Builder
	if names := regexp.MustCompile(`<!-- hosts: (.*) -->`).FindStringSubmatch(section); names != nil {
		for _, name := range strings.Split(names[1], ", ") {
			hosts.WriteString(read(t, filepath.Join(hostsDir, name+".yaml")))
		}
	}
	for _, fact := range regexp.MustCompile("`/[^ `]+`|`[\\w-]+\\.service`|\\b\\d{4}\\b").FindAllString(section, -1) {
		isThere := strings.Contains(hosts.String(), strings.Trim(fact, "`"))
		require.True(t, isThere, "%s names %s, which none of its hosts has", file, fact)
	}
	reason := regexp.MustCompile("`(SystemdUnit|Container|Process|DataDirectory|StaticPod)`")
	for _, r := range reason.FindAllStringSubmatch(section, -1) {
		isThere := strings.Contains(hosts.String(), "source: "+r[1])
		require.True(t, isThere, "%s: etcd on none of its hosts has the reason %s", file, r[1])
	}
}

// requireInMessages requires that each command that follows a comment `<!-- message: NAME -->` is
// in that golden file of pkg/protect/quorum.
func requireInMessages(t *testing.T, file, page string) {
	t.Helper()
	block := regexp.MustCompile("(?m)^<!-- message: ([\\w-]+) -->\n```sh\n((?s:.*?))```$")
	values := strings.NewReplacer("NAME", "w2", "ADDRESS", "10.0.0.2")
	for _, b := range block.FindAllStringSubmatch(page, -1) {
		for command := range strings.Lines(b[2]) {
			require.Contains(t, golden(t, b[1]), strings.TrimSpace(values.Replace(command)), file)
		}
	}
}
