package main

import (
	"fmt"
	"strings"
	"time"
)

// excerpt returns the lines that have one of the words.
func excerpt(text string, words ...string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		for _, word := range words {
			if strings.Contains(line, word) {
				kept.WriteString(line)
				break
			}
		}
	}
	return kept.String()
}

// contains is nil if the text has the words.
func contains(text, words string) error {
	if strings.Contains(text, words) {
		return nil
	}
	return fmt.Errorf("%q is not in %q", words, brief(text))
}

// brief is the first line, and how much is left.
func brief(text string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	const most = 160
	if len(first) > most {
		first = first[:most] + "…"
	}
	if rest != "" {
		first += " […]"
	}
	return first
}

func outcome(err error) string {
	if err != nil {
		return err.Error()
	}
	return "so it is"
}

func describeCordons(nodes string) string {
	return fmt.Sprintf("%d cordoned", strings.Count(nodes, "SchedulingDisabled"))
}

func took(begun time.Time) string { return time.Since(begun).Round(100 * time.Millisecond).String() }
