package etcddetect

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/systemd"
)

func TestShellCommands(t *testing.T) {
	unset, output := systemd.Unresolved, systemd.Unresolved("output")
	env := map[string]string{"OPTS": "--name=a  --data-dir='/d'", "DIR": "/my dir", "EMPTY": ""}
	for name, c := range map[string]struct {
		text string
		want [][]string
	}{
		"one command":         {"exec etcd --name a", [][]string{{"exec", "etcd", "--name", "a"}}},
		"operators":           {"a&&b||c;d|e&f\n(g)", [][]string{{"a"}, {"b"}, {"c"}, {"d"}, {"e"}, {"f"}, {"g"}}},
		"quoted operators":    {`a "b;c" 'd&&e' f\;g`, [][]string{{"a", "b;c", "d&&e", "f;g"}}},
		"redirections":        {"etcd -x >/var/log/a 2>&1 </dev/null", [][]string{{"etcd", "-x"}}},
		"comment":             {"etcd --a # && other", [][]string{{"etcd", "--a"}}},
		"assignments":         {`A=1 B="2 3" etcd; C=4`, [][]string{{"A=1", "B=2 3", "etcd"}, {"C=4"}}},
		"export":              {"export A=1 B; etcd", [][]string{{"A=1"}, {"etcd"}}},
		"condition":           {"if [ -f /a ]; then etcd; fi", [][]string{{"[", "-f", "/a", "]"}, {"etcd"}}},
		"continued line":      {"etcd \\\n  --name=a", [][]string{{"etcd", "--name=a"}}},
		"escapes":             {`a\ b "\$c\d\"" '\e'`, [][]string{{"a b", `$c\d"`, `\e`}}},
		"words of a variable": {"etcd $OPTS", [][]string{{"etcd", "--name=a", "--data-dir='/d'"}}},
		"quoted variable":     {`etcd "$DIR" x${DIR}y $EMPTY`, [][]string{{"etcd", "/my dir", "x/my diry"}}},
		"unset":               {"etcd $NO a${NO}b", [][]string{{"etcd", unset("$NO"), "a" + unset("$NO") + "b"}}},
		"substitutions":       {"A=$(b; c) d `e` $((1+1)) <(f)", [][]string{{"A=" + output, "d", output, output, output}}},
		"computed variable": {
			"etcd ${NO:-/d} ${DIR%/*} ${#DIR} ${!DIR}",
			[][]string{{"etcd", unset("$NO"), unset("$DIR"), unset("$DIR"), unset("$DIR")}},
		},
		"markers": {
			"etcd --name=" + unset("%i") + " '" + unset("$A b") + "'",
			[][]string{{"etcd", "--name=" + unset("%i"), unset("$A b")}},
		},
		"marker of a command": {"$(echo " + unset("%i") + ") etcd", [][]string{{output, "etcd"}}},
		"error":               {"a; etcd ${", [][]string{nil, {"a;", "etcd", "${"}}},
		"unclosed quote":      {"etcd 'a", [][]string{nil, {"etcd", "a"}}},
		"NUL":                 {"et\x00cd \x020\x03", [][]string{{"etcd", "\x020\x03"}}},
		"no UTF-8":            {"etcd; \xf0", [][]string{nil, {"etcd;", "\xf0"}}},
		"nothing":             {"# nothing", nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, shellCommands(c.text, env)) })
	}
}

// TestShellDepth: a text of nested commands, which only root can put into a unit, takes a bounded
// amount of memory: 16 MiB, and twice as much with the race detector.
func TestShellDepth(t *testing.T) {
	for _, text := range []string{"(", "$(", "{ ", "a=${a:-", "\"$(", "if ", "((", "`", "! "} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		shellCommands(strings.Repeat(text, maxShellText/len(text)), nil)
		runtime.ReadMemStats(&after)
		require.Less(t, after.StackSys, before.StackSys+40<<20, "%q", text)
	}
	long := strings.Repeat("a ", maxShellText)
	require.Nil(t, shellCommands(long, nil)[0], "not parsed")
}

func FuzzShell(f *testing.F) {
	f.Add("A=$(b `c`) etcd $OPTS ${OPTS:-d} 'e' \"$f\"; for g in h; do i; done", "j k")
	f.Add("[[ a =~ b ]] && function c { d; }; export E=(f g) h+=i; $'\\x41' {j,k} @(l) ~m", "\x00$n\x01")
	f.Fuzz(func(t *testing.T, text, opts string) {
		for _, words := range shellCommands(text, map[string]string{"OPTS": opts}) {
			for _, word := range words {
				isResolved := len(systemd.UnresolvedNames(word)) == 0
				require.Equal(t, isResolved, systemd.ReplaceUnresolved(word, "") == word, "%q", word)
			}
		}
	})
}
