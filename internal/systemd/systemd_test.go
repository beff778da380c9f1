package systemd

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/internal/hosttest"
)

func TestParseUnitFile(t *testing.T) {
	service := func(name, value string) unitOption { return unitOption{"Service", name, value} }
	long := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct {
		text string
		want []unitOption
	}{
		"empty":                    {},
		"comments and blank lines": {"# a\n\n  ; b\n[Service]\n \t\n#A=1\nA=2\n", []unitOption{service("A", "2")}},
		"blanks around":            {"  [Service] \n\tA = b c \t\n", []unitOption{service("A", "b c")}},
		"empty value":              {"[Service]\nA=\n", []unitOption{service("A", "")}},
		"equals in the value":      {"[Service]\nA=b=c\n", []unitOption{service("A", "b=c")}},
		"joined lines": {
			"[Service]\nA=b\\\n   c \\\n\td\nE=f\n", []unitOption{service("A", "b c  d"), service("E", "f")},
		},
		"comment between": {
			"[Service]\nA=b \\\n# --old \\\n  ; older\n  c\nE=f\n", []unitOption{service("A", "b  c"), service("E", "f")},
		},
		"empty line after joining": {"[Service]\nA=b \\\n\nE=f\n", []unitOption{service("A", "b"), service("E", "f")}},
		"backslash at the end":     {"[Service]\nA=b \\", []unitOption{service("A", "b")}},
		"escaped backslash":        {"[Service]\nA=b\\\\\nE=f\n", []unitOption{service("A", `b\\`), service("E", "f")}},
		"Windows line ends":        {"[Service]\r\nA=b \\\r\n c\r\n", []unitOption{service("A", "b  c")}},
		"byte order mark":          {"\ufeff[Service]\nA=b\n", []unitOption{service("A", "b")}},
		"no newline at the end":    {"[Service]\nA=b", []unitOption{service("A", "b")}},
		"no assignment":            {"A=0\n[Service]\nnothing\n=x\nA=1\n", []unitOption{service("A", "1")}},
		"sections": {"[Unit]\nA=1\n[X-Other]\nA=2\n[Service]\nA=3\n", []unitOption{
			{"Unit", "A", "1"}, {"X-Other", "A", "2"}, service("A", "3"),
		}},
		"backslash in a comment": {"[Service]\n# old \\\nA=1\n", []unitOption{service("A", "1")}},
		"long line":              {"[Service]\nA=" + long + "\n", []unitOption{service("A", long)}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseUnitFile([]byte(c.text))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestParseUnitFileQuotesNothing(t *testing.T) {
	for name, c := range map[string]struct{ text, err string }{
		"setting after the section": {"\n[Service] Environment=ETCD_PASSWORD=hunter2\nA=1\n", "line 2: the section header"},
		"section that is cut off":   {"[Service]\nA=1\n[Insthunter2", "line 3: the section header"},
		"joined section":            {"[Service \\\n hunter2\n", "line 2: the section header"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseUnitFile([]byte(c.text))
			require.ErrorContains(t, err, c.err)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestParseEnvFile(t *testing.T) {
	require.Equal(t, map[string]string{
		"A": "1", "B": "two words", "C": "it's", "D": "#kept", "E": "joined line", "F": `back\slash`, "G": "", "H": "spaces",
	}, parseEnvFile([]byte(strings.Join([]string{
		"# comment", "; comment", "", "A=1", `B="two words"`, `C="it's"`, "D=#kept", `E=joined \`, "line", `F=back\\slash`,
		"G=", "  H = spaces  ", "no assignment", "1X=no name", "=no name", "export I=no name either", "\r",
	}, "\n"))))
}

// The values are those that systemd reads (src/basic/env-file.c).
func TestParseEnvValue(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"A=\"x\n --data-dir /y\"\nB=1\n":      {"A": "x\n --data-dir /y", "B": "1"},
		"A='x\n#y'\n":                         {"A": "x\n#y"},
		"A=\"x\\\ny\"\n":                      {"A": "xy"},
		"A=\"\\$x \\d \\\"\"\n":               {"A": `$x \d "`},
		"A='a'\"b\" c  \nB=x\n":               {"A": "abc", "B": "x"},
		"A=/srv/\"etcd\"\nB=it's\n":           {"A": `/srv/"etcd"`, "B": "it's"},
		"A=one \\\n two\\ \\\nB=2":            {"A": "one  two B=2"},
		"A=\"not closed\nB=1\n":               {"A": "not closed\nB=1\n"},
		"# A=\"1\n# \\\nB=2\r\nC=3 \\\n\nD=4": {"B": "2", "C": "3 ", "D": "4"},
		"A=x\\":                               {"A": "x"},
		"":                                    {},
	} {
		require.Equal(t, want, parseEnvFile([]byte(text)), "%q", text)
	}
}

func TestReadUnit(t *testing.T) {
	const name = "etcd@blue.service"
	root := hostfs.Root(hosttest.New(t, hosttest.Files{
		"/etc/systemd/system/" + name: "[Unit]\nEnvironment=ETCD_NAME=wrong-section\n[Service]\n" +
			"Environment=ETCD_NAME=%i ETCD_DATA_DIR=/first\nEnvironment='ETCD_DATA_DIR=/second'\n" +
			"EnvironmentFile=-/missing\nEnvironmentFile=/etc/%p.env\n" +
			"ExecStart=/old\nExecStart=\nExecStart=/usr/bin/etcd --name=%n\n",
		"/etc/systemd/system/" + name + ".d/20.conf":     "[Service]\nWorkingDirectory=/srv/etcd\n",
		"/usr/lib/systemd/system/" + name + ".d/20.conf": "[Service]\nWorkingDirectory=/hidden\n",
		"/usr/lib/systemd/system/" + name + ".d/10.conf": "[Service]\nEnvironment=A=1\n",
		"/usr/lib/systemd/system/" + name:                "[Service]\nExecStart=/weaker\n",
		"/etc/etcd.env":                                  "ETCD_DATA_DIR=/third\n",
		"/etc/systemd/system/other.service":              "[Service]\n",
	}))
	files, unread := UnitFiles(root, []string{"*etcd*.service"})
	require.Empty(t, unread)
	require.Equal(t, map[string][]string{name: {
		"/etc/systemd/system/" + name, "/usr/lib/systemd/system/" + name + ".d/10.conf",
		"/etc/systemd/system/" + name + ".d/20.conf",
	}}, files)
	require.Equal(t, Unit{
		Name: name, Files: files[name], ExecStart: "/usr/bin/etcd --name=etcd@blue.service", WorkingDirectory: "/srv/etcd",
		EnvFilePatterns: []string{"/missing", "/etc/etcd.env"},
		EnvFiles:        []EnvFile{{Path: "/etc/etcd.env", Env: map[string]string{"ETCD_DATA_DIR": "/third"}}},
		Env:             map[string]string{"ETCD_NAME": "blue", "ETCD_DATA_DIR": "/third", "A": "1"},
	}, ReadUnit(root, name, files[name]))
}

func FuzzEnvFile(f *testing.F) {
	f.Add("A=1\nB=\"x\\\n y\"\n", "value")
	f.Add("A='x\n# y'  z\\\n \nB=\"\\$", "#")
	f.Fuzz(func(t *testing.T, text, value string) {
		for name := range parseEnvFile([]byte(text)) {
			require.True(t, IsVariableName(name), "%q", name)
		}
		if strings.ContainsAny(value, "\\'\"\r\n") || strings.TrimSpace(value) != value {
			return
		}
		require.Equal(t, value, parseEnvFile([]byte("A=" + value))["A"])
		require.Equal(t, value, parseEnvFile([]byte("A=\"" + value + "\""))["A"])
	})
}

func FuzzUnitFile(f *testing.F) {
	f.Add("[Service]\nEnvironment=ETCD_NAME=%m \"A=b c\"\nExecStartPre=/usr/bin/docker run --env-file /e etcd\n")
	f.Add("[Service]\nExecStart=\nExecStart=/bin/bash -c \"/usr/bin/etcd --name=\\\"${A}\\\"\"\n[Service]\nA=")
	f.Add("[Service]\nExecStart=/usr/bin/etcd \\\n# --old \\\n  --data-dir /d")
	f.Add("[Service]\nExecStart=\\ ")
	f.Fuzz(func(t *testing.T, text string) {
		options, err := parseUnitFile([]byte(text))
		if err != nil {
			require.Regexp(t, `^line [0-9]+: `+errSection.Error()+`$`, err.Error())
			return
		}
		commented := "# first\n" + strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\n", "\n # comment \\\n")
		got, err := parseUnitFile([]byte(commented))
		require.NoError(t, err)
		require.Equal(t, options, got, "comments change nothing")
		var again strings.Builder
		for _, o := range options {
			// The blank at the end keeps a backslash from joining lines.
			again.WriteString("[" + o.section + "]\n" + o.name + "=" + o.value + " \n")
		}
		got, err = parseUnitFile([]byte(again.String()))
		require.NoError(t, err)
		require.Equal(t, options, got)
		var settings unitSettings
		settings.add(options)
	})
}

func TestShutdownState(t *testing.T) {
	now := time.Date(2026, 8, 1, 10, 0, 0, 0, time.UTC)
	state := func(m *ShutdownMonitor, after time.Duration) string {
		s := m.State(now.Add(after))
		return map[[3]bool]string{
			{true, false, false}: "going down", {false, true, false}: "stays up", {false, false, true}: "pending", {}: "unknown",
		}[[3]bool{s.GoingDown, s.StaysUp, s.AwaitsLogind}]
	}
	var m ShutdownMonitor
	m.setLost(now)
	require.Equal(t, "pending", state(&m, 0))
	m.setLost(now.Add(time.Second)) // keeps the first time
	require.Equal(t, "unknown", state(&m, stateLifetime), "logind is not awaited without a limit")
	require.False(t, m.set(false))
	require.Equal(t, "stays up", state(&m, 0))
	require.False(t, m.State(now).SawShutdown)
	require.True(t, m.set(true))
	require.False(t, m.set(true), "no change")
	require.Equal(t, "going down", state(&m, time.Hour), "while connected")
	m.setLost(now)
	require.Equal(t, "going down", state(&m, 5*time.Minute), "the bus ends before the host, and units stop slowly")
	require.Equal(t, "going down", state(&m, shutdownLifetime-time.Second), "systemd has not forced the end yet")
	require.Equal(t, "unknown", state(&m, shutdownLifetime), "an unreported cancellation must not hold the node")
	m.set(false)
	require.True(t, m.State(now).SawShutdown, "a shutdown that has begun, and was cancelled")
	m.setLost(now)
	require.Equal(t, "pending", state(&m, stateLifetime-time.Second))
}

// A countingContext counts the functions that wait for its end.
type countingContext struct {
	done    chan struct{}
	waiting int
}

func (c *countingContext) Deadline() (deadline time.Time, ok bool) { return }
func (c *countingContext) Done() <-chan struct{}                   { return c.done }
func (c *countingContext) Err() error                              { return nil }
func (c *countingContext) Value(any) any                           { return nil }

func (c *countingContext) AfterFunc(func()) (stop func() bool) {
	c.waiting++
	return func() bool { c.waiting--; return true }
}

// The agent calls Watch again and again on a host without a bus.
func TestWatchWithoutBus(t *testing.T) {
	m := NewShutdownMonitor(hostfs.Root(hosttest.New(t, nil)))
	ctx := &countingContext{done: make(chan struct{})}
	for range 3 {
		require.ErrorContains(t, m.Watch(ctx, nil, nil), "connecting to the system bus")
	}
	require.Zero(t, ctx.waiting)
}
