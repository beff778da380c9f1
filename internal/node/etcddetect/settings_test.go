package etcddetect

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want etcdSettings
	}{
		"none":               {nil, etcdSettings{}},
		"both forms":         {[]string{"--name=a", "-data-dir", "/d"}, etcdSettings{"name": "a", "data-dir": "/d"}},
		"no value":           {[]string{"--pre-vote", "--name", "a"}, etcdSettings{"pre-vote": "true", "name": "a"}},
		"false":              {[]string{"--client-cert-auth=false"}, etcdSettings{"client-cert-auth": "false"}},
		"value with dashes":  {[]string{"--name", "--odd"}, etcdSettings{"name": "--odd"}},
		"missing value":      {[]string{"--name"}, etcdSettings{"name": "true"}},
		"empty value":        {[]string{"--name="}, etcdSettings{"name": ""}},
		"equals in value":    {[]string{"--initial-cluster=a=1,b=2"}, etcdSettings{"initial-cluster": "a=1,b=2"}},
		"ends at a word":     {[]string{"gateway", "--name=a"}, etcdSettings{}},
		"ends at two dashes": {[]string{"--name=a", "--", "--name=b"}, etcdSettings{"name": "a"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, parseFlags(c.args)) })
	}
}

func FuzzFlags(f *testing.F) {
	f.Add("--name=a --data-dir /d", "n", "/d")
	f.Fuzz(func(t *testing.T, line, name, dir string) {
		config := parseFlags(strings.Split(line, " ")).config("/srv/etcd", true)
		require.True(t, filepath.IsAbs(config.DataDir))
		require.NotEmpty(t, config.Name)
		flags := parseFlags([]string{"--name=" + name, "--pre-vote", "-data-dir", dir})
		require.Equal(t, name, flags["name"])
		require.Equal(t, dir, flags["data-dir"])
	})
}

func FuzzConfigFile(f *testing.F) {
	f.Add("name: a\nclient-transport-security:\n  cert-file: /c\n")
	f.Add("name: [1, {a: b}]\npeer-transport-security: 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		settings, err := parseConfigFile([]byte(text))
		if err != nil {
			require.Nil(t, settings)
			return
		}
		require.True(t, filepath.IsAbs(settings.config("/", true).DataDir))
	})
}

func TestDecodeYAML(t *testing.T) {
	for name, c := range map[string]struct{ text, problem string }{
		"nothing":              {"", ""},
		"mapping":              {"a: b\n", ""},
		"anchor":               {"x: &x {b: c}\na: *x\nd: {<<: *x}\n", ""},
		"half a sequence":      {"a: [secret", "it is not valid YAML, line 1"},
		"tab":                  {"a: b\n\tsecret: d\n", "it is not valid YAML, line 2"},
		"null key":             {"a: b\n~: secret\n", errYAMLForm.Error()},
		"list as a key":        {"? [secret]\n: b\n", errYAMLForm.Error()},
		"no mapping":           {"secret\n", errYAMLForm.Error()},
		"alias without anchor": {"a: *secret\n", "it is not valid YAML"},
		"recursive anchor":     {"a: &a [*a]\n", errYAMLAlias.Error()},
		"large with aliases":   {"a: &a " + strings.Repeat("x", 60<<10) + "\nb: [*a, *a, *a]\n", errYAMLAlias.Error()},
		"large":                {strings.Repeat("# a comment\n", 6000), errYAMLSize.Error()},
		"deep":                 {strings.Repeat("[", 200) + strings.Repeat("]", 200), errYAMLAlias.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			var into map[string]any
			err := decodeYAML([]byte(c.text), &into)
			if c.problem == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.problem)
		})
	}
}

// TestDecodeYAMLMemory decodes the texts that take the most memory for their size. The agent
// has 128 MiB.
func TestDecodeYAMLMemory(t *testing.T) {
	many := func(text string, n int) string { return strings.Repeat(text, n) }
	for name, text := range map[string]string{
		"large anchor": "a: &a " + many("x", 60<<10) + "\nb: [" + many("*a,", 1000) + "]\n",
		"nested anchors": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\n" +
			"d: &d [*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d]\n",
		"many entries":            "a: [" + many("a,", 32000) + "]\n",
		"many mappings":           "a: [" + many("{a: },", 10000) + "]\n",
		"aliases up to the limit": "a: &a [" + many("{},", 1000) + "]\nb: [" + many("*a,", 50) + "]\n",
		"repeated key":            many("a: b\n", 13000),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var into map[string]any
			_ = decodeYAML([]byte(text), &into) // the result does not matter
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(48<<20), "for %d bytes", len(text))
		})
	}
}

// TestRelativePaths: etcd resolves the paths of files by its working directory.
func TestRelativePaths(t *testing.T) {
	flags := func() etcdSettings { return etcdSettings{"cert-file": "pki/a.pem", "trusted-ca-file": "/etc/ca.pem"} }
	unread := func(path string) ([]byte, error) { return nil, errors.New("must not read " + path) }
	for workDir, want := range map[string]string{"/etc/etcd": "/etc/etcd/pki/a.pem", "/": "/pki/a.pem", "": "pki/a.pem"} {
		loaded, err := loadSettings(flags(), etcdSettings{}, workDir, unread)
		require.NoError(t, err)
		require.Equal(t, etcdSettings{"cert-file": want, "trusted-ca-file": "/etc/ca.pem"}, loaded)
	}
	file := func(path string) ([]byte, error) {
		require.Equal(t, "/etc/etcd/etcd.yml", path)
		return []byte("client-transport-security: {key-file: a.key}\n"), nil
	}
	loaded, err := loadSettings(etcdSettings{"config-file": "etcd.yml"}, etcdSettings{}, "/etc/etcd", file)
	require.NoError(t, err)
	require.Equal(t, "/etc/etcd/a.key", loaded["key-file"])
}
