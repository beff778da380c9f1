package etcdprobe

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestWhatWasTriedIsSaidInTheFewestWords(t *testing.T) {
	refused := &failure{words: "connection refused", deaf: true, outcome: unreachable}
	unknown := &failure{words: "remote error: tls: unknown certificate authority", outcome: untrusted}
	missing := &failure{words: "reading the client key: open /etc/etcd/key.pem: permission denied", outcome: unreadable}
	way := func(url, origin string) target {
		return target{url: url, credential: protect.Credential{Origin: origin}}
	}
	const one, two = "https://127.0.0.1:2379", "https://10.0.0.1:2379"
	for name, c := range map[string]struct {
		add    func(*trail)
		said   string
		advice bool
	}{
		"nobody is there, wherever one asks": {
			func(tr *trail) { tr.add(way(one, "a"), refused); tr.add(way(two, "a"), refused) },
			one + ", " + two + ": connection refused", false,
		},
		"every credential fails alike at every URL": {
			func(tr *trail) {
				for _, url := range []string{one, two} {
					tr.add(way(url, "the admin's"), unknown)
					tr.add(way(url, "the server's"), unknown)
					tr.add(way(url, "the peer's"), missing)
				}
			},
			one + ", " + two + " (the admin's, the server's): " + unknown.words + "; (the peer's): " + missing.words, true,
		},
		"they fail differently": {
			func(tr *trail) {
				tr.add(way(one, "a"), unknown)
				tr.add(way(one, "b"), missing)
				tr.add(way(two, "a"), refused)
			},
			one + " (a): " + unknown.words + "; (b): " + missing.words + "; " + two + ": connection refused", true,
		},
		"without a credential": {
			func(tr *trail) { tr.add(target{url: one}, errors.New("request timed out")) }, one + ": request timed out", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var tr trail
			c.add(&tr)
			require.Equal(t, c.said, tr.String())
			want := c.said
			if c.advice {
				want += hint
			}
			require.Equal(t, want, tr.advice())
		})
	}
}

func TestAdviceIsNeverCutOff(t *testing.T) {
	var tr trail
	for i := range 100 {
		tr.add(target{url: "https://127.0.0.1:2379", credential: protect.Credential{Origin: fmt.Sprint("file ", i)}},
			&failure{words: strings.Repeat("\u00fc", i), outcome: untrusted})
	}
	require.LessOrEqual(t, len(tr.advice()), maxWords)
	require.True(t, strings.HasSuffix(tr.advice(), "\u2026"+hint))
}
