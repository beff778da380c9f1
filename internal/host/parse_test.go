package host

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestFlagSettings(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want settings
	}{
		"none":                {nil, settings{}},
		"both forms":          {[]string{"--name=a", "-data-dir", "/d"}, settings{"name": "a", "data-dir": "/d"}},
		"one without a value": {[]string{"--client-cert-auth", "--name", "a"}, settings{"client-cert-auth": "true", "name": "a"}},
		"false":               {[]string{"--client-cert-auth=false"}, settings{"client-cert-auth": "false"}},
		"value with dashes":   {[]string{"--name", "--odd"}, settings{"name": "--odd"}},
		"value missing":       {[]string{"--name"}, settings{"name": "true"}},
		"empty value":         {[]string{"--name="}, settings{"name": ""}},
		"equals in value":     {[]string{"--initial-cluster=a=http://1,b=http://2"}, settings{"initial-cluster": "a=http://1,b=http://2"}},
		"ends at a word":      {[]string{"gateway", "--name=a"}, settings{}},
		"ends at two dashes":  {[]string{"--name=a", "--", "--name=b"}, settings{"name": "a"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, flagSettings(c.args)) })
	}
}

func TestEnvFile(t *testing.T) {
	require.Equal(t, map[string]string{
		"A": "1", "B": "two words", "C": "it's", "D": "#kept", "E": "joined line", "F": `back\slash`, "G": "", "H": "spaces",
	}, parseEnvFile([]byte(strings.Join([]string{
		"# comment", "; comment", "", "A=1", `B="two words"`, `C="it's"`, "D=#kept", `E=joined \`, "line", `F=back\\slash`, "G=", "  H = spaces  ",
		"no assignment", "1X=no name", "=no name", "export I=no name either", "\r",
	}, "\n"))))
}

func TestSettingsAreFoundBehindAUnitsCommand(t *testing.T) {
	env := map[string]string{"OPTS": "--name=a --data-dir=/d", "DIR": "/my dir", "ETCD_NAME": "b"}
	for name, c := range map[string]struct {
		exec   string
		args   []string
		env    []string
		server bool
	}{
		"nothing":               {exec: ""},
		"plain":                 {"/usr/bin/etcd --name=a", []string{"--name=a"}, nil, true},
		"prefixed":              {"-@/usr/bin/etcd", nil, nil, true},
		"variable of words":     {"/usr/bin/etcd $OPTS", []string{"--name=a", "--data-dir=/d"}, nil, true},
		"variable in a word":    {"/usr/bin/etcd --data-dir=${DIR}", []string{"--data-dir=/my dir"}, nil, true},
		"unknown variable":      {"/usr/bin/etcd $NO --data-dir=${NO}", []string{"--data-dir=" + gap("$NO")}, nil, true},
		"data directory's name": {"/usr/bin/etcd --data-dir=/srv/etcd", []string{"--data-dir=/srv/etcd"}, nil, true},
		"shell":                 {`/bin/bash -c "GOMAXPROCS=$(nproc) exec /usr/bin/etcd --name=\"${ETCD_NAME}\""`, []string{"--name=b"}, nil, true},
		"shell with options":    {`/bin/sh -ec 'exec /usr/local/bin/etcd --name a'`, []string{"--name", "a"}, nil, true},
		"docker, image alone":   {"/usr/bin/docker run --rm --env-file=/etc/etcd.env --name etcd quay.io/coreos/etcd:v3.5", nil, []string{"/etc/etcd.env"}, true},
		"docker, with a program": {
			"/usr/bin/docker run --env-file /e --name=etcd1 quay.io/coreos/etcd@sha256:0 /usr/local/bin/etcd --name=a", []string{"--name=a"}, []string{"/e"}, true,
		},
		"wrapper":       {"/usr/lib/coreos/etcd-wrapper $OPTS", []string{"--name=a", "--data-dir=/d"}, nil, true},
		"etcdctl":       {exec: "/usr/bin/etcdctl --endpoints=x snapshot save /var/lib/etcd"},
		"gateway":       {exec: "/usr/bin/etcd gateway start"},
		"docker stop":   {exec: "/usr/bin/docker rm -f etcd-backup"},
		"another image": {exec: "/usr/bin/docker run -v /var/lib/etcd redis"},
	} {
		t.Run(name, func(t *testing.T) {
			found := serverCommand(commandLine(c.exec, env), env)
			require.Equal(t, c.server, found.server)
			require.Equal(t, c.args, slices.Clip(append([]string(nil), found.args...)))
			require.Equal(t, c.env, found.envFiles)
		})
	}
}

func TestPlacement(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for cgroup, want := range map[string]placement{
		"/": {},
		"/user.slice/user-1000.slice/session-3.scope":      {},
		"/system.slice/etcd.service":                       {units: []string{"etcd.service"}},
		"/../../system.slice/etcd.service":                 {units: []string{"etcd.service"}},
		"/system.slice/docker.service":                     {},
		"/user.slice/user@1000.service":                    {},
		"/system.slice/docker-" + id + ".scope":            {container: true},
		"/docker/" + id:                                    {container: true},
		"/machine.slice/libpod-" + id + ".scope/container": {container: true},
		"/kubepods/burstable/pod1/" + id:                   {pod: true, container: true},
		"/kubepods.slice/kubepods-besteffort.slice/kubepods-pod1.slice/crio-" + id + ".scope":      {pod: true, container: true},
		"/docker/" + id + "/system.slice/etcd.service":                                             {units: []string{"etcd.service"}},
		"/kubepods/pod1/" + id + "/docker/" + id + "/kubelet.slice/kubelet-kubepods.slice/x.scope": {pod: true},
		"/k3s.service/kubepods/pod1/" + id:                                                         {pod: true, container: true},
	} {
		t.Run(cgroup, func(t *testing.T) {
			var p placement
			p.add(cgroup)
			require.Equal(t, want, p)
		})
	}
}

func TestPlacementKeepsWhatAnotherHierarchyTold(t *testing.T) {
	var p placement
	p.add("/system.slice/etcd.service")
	p.add("/")
	require.Equal(t, "etcd.service", p.unit())
}

func TestUnits(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"etc/systemd/system/etcd@blue.service":               "[Unit]\nEnvironment=ETCD_NAME=wrong-section\n[Service]\nEnvironment=ETCD_NAME=%i ETCD_DATA_DIR=/first\nEnvironment='ETCD_DATA_DIR=/second'\nEnvironmentFile=-/missing\nEnvironmentFile=/etc/%p.env\nExecStart=/old\nExecStart=\nExecStart=/usr/bin/etcd --name=%n\n",
		"etc/systemd/system/etcd@blue.service.d/20.conf":     "[Service]\nWorkingDirectory=/srv/etcd\n",
		"usr/lib/systemd/system/etcd@blue.service.d/20.conf": "[Service]\nWorkingDirectory=/hidden\n",
		"usr/lib/systemd/system/etcd@blue.service.d/10.conf": "[Service]\nEnvironment=A=1\n",
		"usr/lib/systemd/system/etcd@blue.service":           "[Service]\nExecStart=/weaker\n",
		"etc/etcd.env":                     "ETCD_DATA_DIR=/third\n",
		"etc/systemd/system/other.service": "[Service]\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o644))
	}
	h, err := New(Options{Root: root})
	require.NoError(t, err)
	units, unread := h.unitFiles(serverUnits())
	require.Empty(t, unread)
	require.Equal(t, map[string][]string{"etcd@blue.service": {
		"/etc/systemd/system/etcd@blue.service", "/usr/lib/systemd/system/etcd@blue.service.d/10.conf", "/etc/systemd/system/etcd@blue.service.d/20.conf",
	}}, units)
	unit := h.service("etcd@blue.service", units["etcd@blue.service"])
	require.Equal(t, service{
		name: "etcd@blue.service", files: units["etcd@blue.service"], line: []string{"/usr/bin/etcd", "--name=etcd@blue.service"},
		command: command{args: []string{"--name=etcd@blue.service"}, server: true, sure: true},
		workDir: "/srv/etcd", envFile: "/etc/etcd.env", settingsFiles: []string{"/missing", "/etc/etcd.env"},
		env: map[string]string{"ETCD_NAME": "blue", "ETCD_DATA_DIR": "/third", "A": "1"},
	}, unit)
}

func TestATreeIsNeverLeft(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	for link, target := range map[string]string{"abs": "/a/b", "up": "../../../../a", "a/rel": "b", "chain": "abs", "self": "self", "gone": "/nowhere/x", "out": "/nowhere/../../../x"} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, link)))
	}
	for path, want := range map[string]string{
		"/": "", "/a/b": "/a/b", "a/./b": "/a/b", "/abs/c": "/a/b/c", "/up/b": "/a/b", "/a/rel": "/a/b", "/chain": "/a/b",
		"/../../a": "/a", "/abs/../x": "/x", "/gone": "/nowhere/x", "/a/missing/../../abs": "/a/b", "/out": "/nowhere",
	} {
		at, err := tree(root).locate(path)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(root, want), at, path)
	}
	_, err := tree(root).locate("/self/x")
	require.ErrorContains(t, err, "too many levels")
}

func FuzzTree(f *testing.F) {
	f.Add("/a/b", "../../x")
	f.Add("0", "missing/../..")
	f.Fuzz(func(t *testing.T, path, target string) {
		root := t.TempDir()
		if strings.ContainsRune(path+target, 0) || os.Symlink(target, filepath.Join(root, "link")) != nil {
			return
		}
		for _, p := range []string{path, "/link/" + path, path + "/link"} {
			if at, err := tree(root).locate(p); err == nil && at != root {
				require.True(t, strings.HasPrefix(at, root+"/"), "%q leads to %q", p, at)
			}
		}
	})
}

func FuzzEnvFile(f *testing.F) {
	f.Add("A=1\nB=\"x\\\n y\"\n", "value")
	f.Fuzz(func(t *testing.T, text, value string) {
		for name := range parseEnvFile([]byte(text)) {
			require.True(t, isVariable(name), "%q", name)
		}
		if strings.ContainsAny(value, "\\'\"\r\n") || strings.TrimSpace(value) != value {
			return
		}
		require.Equal(t, value, parseEnvFile([]byte("A=" + value))["A"])
		require.Equal(t, value, parseEnvFile([]byte("A=\"" + value + "\""))["A"])
	})
}

func FuzzFlags(f *testing.F) {
	f.Add("--name=a --data-dir /d", "n", "/d")
	f.Fuzz(func(t *testing.T, line, name, dir string) {
		told := flagSettings(strings.Split(line, " ")).config("/srv/etcd", true)
		require.True(t, filepath.IsAbs(told.DataDir))
		require.NotEmpty(t, told.Name)
		exact := flagSettings([]string{"--name=" + name, "--pre-vote", "-data-dir", dir})
		require.Equal(t, name, exact["name"])
		require.Equal(t, dir, exact["data-dir"])
	})
}

func FuzzConfigFile(f *testing.F) {
	f.Add("name: a\nclient-transport-security:\n  cert-file: /c\n")
	f.Add("name: [1, {a: b}]\npeer-transport-security: 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		told, err := fileSettings([]byte(text))
		if err != nil {
			require.Nil(t, told)
			return
		}
		require.True(t, filepath.IsAbs(told.config("/", true).DataDir))
	})
}

func FuzzSubnetFile(f *testing.F) {
	const whole = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	f.Add(whole, 10)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		var file readiness.SubnetFile
		if parseSubnetFile([]byte(text), &file) == nil {
			require.NotEmpty(t, file.Subnet+file.IPv6Subnet)
			require.NotEmpty(t, file.MTU)
		}
		if cut >= 0 && cut < len(whole)-1 { // the last line's end may be missing
			require.Error(t, parseSubnetFile([]byte(whole[:cut]), &file), "half-written at %d", cut)
		}
	})
}

func FuzzUnitCommand(f *testing.F) {
	f.Add("/bin/bash -c \"exec /usr/bin/etcd $OPTS\"", "--name=a")
	f.Add("/bin/sh -c 'cd /a && A=$(b `c`) etcd $OPTS; d'", "--data-dir=${B}")
	f.Add("/usr/bin/docker run -e A=b -v c:/d --mount type=bind,src=/e,dst=/f quay.io/coreos/etcd:v3 sh -c 'etcd'", "")
	f.Add("etcd \x01", "a\x00b")
	f.Fuzz(func(t *testing.T, exec, opts string) {
		env := map[string]string{"OPTS": opts}
		found := serverCommand(commandLine(exec, env), env)
		if !found.server {
			require.Equal(t, command{}, found)
		}
		for _, arg := range found.args {
			require.Equal(t, len(gaps(arg)) == 0, fillGaps(arg, "") == arg, "%q", arg)
		}
	})
}
