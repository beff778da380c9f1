package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// given is one answer of a webhook, as its log tells it. The API server passes on one refusal of several, and the stub's is
// the first, so that the client cannot tell what Holdfast said.
type given struct {
	verdict, reason string
	took            time.Duration
}

// logs remembers how far the webhooks' logs have been read.
type logs struct{ read map[string]int }

// news returns the answers about nodes with etcd since the last call. An answer is logged before it is sent.
func (l *logs) news(s *stage) ([]given, error) {
	pattern := regexp.MustCompile(`path=/validate-etcd-node verdict=(\w+) reason=(\w+) took=(\S+)`)
	files, err := filepath.Glob(filepath.Join(s.Dir, "webhook-*.log"))
	if err != nil {
		return nil, err
	}
	var found []given
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading what the webhooks answered: %w", err)
		}
		for _, match := range pattern.FindAllStringSubmatch(string(text[l.read[file]:]), -1) {
			took, err := time.ParseDuration(match[3])
			if err != nil {
				return nil, fmt.Errorf("reading what the webhooks answered: %w", err)
			}
			found = append(found, given{match[1], match[2], took})
		}
		l.read[file] = len(text)
	}
	return found, nil
}

// count sums answers up by verdict and reason.
func count(answers []given) map[string]int {
	sums := map[string]int{}
	for _, a := range answers {
		sums[a.verdict+" "+a.reason]++
	}
	return sums
}
