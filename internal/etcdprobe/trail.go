package etcdprobe

import (
	"errors"
	"slices"
	"strings"
)

// hint ends what is said when every credential was tried in vain.
const hint = "; name a client certificate that it takes with --etcd-ca, --etcd-cert and --etcd-key"

// trail collects what was tried in vain.
type trail struct {
	steps []step
	// picky says that a server was reached and took none of the credentials.
	picky bool
}

// step is what came of one way. It has no origin if the server could not be reached at all.
type step struct {
	url, words string
	origins    []string
	deaf       bool
}

// add notes that a way has failed. Credentials that fail alike at one URL share a step.
func (t *trail) add(way target, err error) {
	this := step{url: way.url, words: err.Error()}
	if f := (*failure)(nil); errors.As(err, &f) {
		this.deaf = f.deaf
		t.picky = t.picky || slices.Contains([]outcome{unreadable, expired, untrusted, forbidden}, f.outcome)
	}
	if way.credential.Origin != "" && !this.deaf {
		this.origins = []string{way.credential.Origin}
	}
	for i, before := range t.steps {
		if before.url == this.url && before.words == this.words && len(before.origins) > 0 && len(this.origins) > 0 {
			t.steps[i].origins = append(before.origins, this.origins...)
			return
		}
	}
	t.steps = append(t.steps, this)
}

// hopeless says that nobody can be reached at a URL, with whatever credential.
func (t *trail) hopeless(url string) bool {
	return slices.ContainsFunc(t.steps, func(s step) bool { return s.deaf && s.url == url })
}

// String says what was tried and what came of it. URLs at which all went alike are named together.
func (t *trail) String() string {
	var urls []string
	said := map[string][]string{} // by URL
	for _, s := range t.steps {
		if said[s.url] == nil {
			urls = append(urls, s.url)
		}
		words := s.words
		if len(s.origins) > 0 {
			words = "(" + strings.Join(s.origins, ", ") + "): " + words
		}
		said[s.url] = append(said[s.url], words)
	}
	var lines []string
	for len(urls) > 0 {
		var alike, rest []string
		for _, u := range urls {
			if slices.Equal(said[u], said[urls[0]]) {
				alike = append(alike, u)
			} else {
				rest = append(rest, u)
			}
		}
		what := strings.Join(said[urls[0]], "; ")
		if !strings.HasPrefix(what, "(") {
			alike[len(alike)-1] += ":"
		}
		lines = append(lines, strings.Join(alike, ", ")+" "+what)
		urls = rest
	}
	return clip(strings.Join(lines, "; "))
}

// advice is what was tried, and what a person can do about it.
func (t *trail) advice() string {
	said := t.String()
	if !t.picky {
		return said
	}
	if most := maxWords - len(hint); len(said) > most {
		said = strings.ToValidUTF8(said[:most-len("…")], "") + "…"
	}
	return said + hint
}
