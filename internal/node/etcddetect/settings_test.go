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

func TestParseConfigFile(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		want    etcdSettings
		problem string
	}{
		"nothing": {"", etcdSettings{}, ""},
		"values": {
			"name: 1000000\ndata-dir: '/d'\nwal-dir: ~\nauto-tls:\nx: [1, {a: b}]\nname: 0x10\n",
			etcdSettings{"name": "16", "data-dir": "/d"},
			"",
		},
		"sections": {
			"client-transport-security: {cert-file: /c}\npeer-transport-security:\n  cert-file: /p\nother: {cert-file: /o}\n",
			etcdSettings{"cert-file": "/c", "peer-cert-file": "/p"},
			"",
		},
		"no section": {
			"name: 1000000\npeer-transport-security: 3\n",
			etcdSettings{"name": "1000000", "peer-transport-security": "3"},
			"",
		},
		"anchors": {
			"x: &x {key-file: /k}\na: &a b\nname: *a\nclient-transport-security: *x\n",
			etcdSettings{"a": "b", "name": "b", "key-file": "/k"},
			"",
		},
		"recursive anchor":     {"client-transport-security: &a {client-transport-security: *a}\n", etcdSettings{}, ""},
		"merge":                {"x: &x {b: c}\n<<: *x\n", nil, errYAMLForm.Error()},
		"merge in a section":   {"client-transport-security: &a {<<: *a}\n", nil, errYAMLForm.Error()},
		"half a sequence":      {"a: [secret", nil, "it is not valid YAML, line 1"},
		"tab":                  {"a: b\n\tsecret: d\n", nil, "it is not valid YAML, line 2"},
		"no mapping":           {"secret\n", nil, errYAMLForm.Error()},
		"alias without anchor": {"a: *secret\n", nil, "it is not valid YAML"},
		"large":                {strings.Repeat("# a comment\n", 6000), nil, errYAMLSize.Error()},
		"deep":                 {strings.Repeat("[", 200) + strings.Repeat("]", 200), nil, errYAMLForm.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			settings, err := parseConfigFile([]byte(c.text))
			require.Equal(t, c.want, settings)
			if c.problem == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.problem)
		})
	}
}

// TestConfigFileMemory reads the texts that take the most memory for their size. The agent has
// 128 MiB.
func TestConfigFileMemory(t *testing.T) {
	many := func(text string, n int) string { return strings.Repeat(text, n) }
	for name, text := range map[string]string{
		"large anchor":  "a: &a " + many("x", 60<<10) + "\nb: [" + many("*a,", 1000) + "]\n",
		"many aliases":  "a: &a b\n" + many("c: *a\n", 10000),
		"many entries":  "a: [" + many("a,", 32000) + "]\n",
		"many mappings": "a: [" + many("{a: },", 10000) + "]\n",
		"repeated key":  many("a: b\n", 13000),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := parseConfigFile([]byte(text))
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
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
