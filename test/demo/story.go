package main

import (
	"fmt"
	"io"
	"strings"
)

// story prints what is expected and what happens, and counts what agrees.
type story struct {
	out        io.Writer
	steps, met int
}

// scene begins a chapter.
func (s *story) scene(title string) {
	fmt.Fprintf(s.out, "\n── %s\n", title)
}

// note tells what is being done.
func (s *story) note(format string, args ...any) {
	fmt.Fprintf(s.out, "   %s\n", fmt.Sprintf(format, args...))
}

// show prints what a command printed, below the command.
func (s *story) show(command, output string) {
	fmt.Fprintf(s.out, "\n   $ %s\n", command)
	for line := range strings.Lines(strings.TrimRight(output, "\n")) {
		fmt.Fprintf(s.out, "   │ %s\n", strings.TrimRight(line, "\n"))
	}
}

// step says what was expected, what happened, and whether the two agree.
func (s *story) step(ok bool, expected, happened string) {
	s.steps++
	verdict := "NOT AS EXPECTED"
	if ok {
		s.met++
		verdict = "as expected"
	}
	fmt.Fprintf(s.out, "\n   expected: %s\n   happened: %s\n   %d. %s\n", expected, happened, s.steps, verdict)
}

// end is the last line.
func (s *story) end() error {
	if s.met != s.steps {
		return fmt.Errorf("%d of %d as expected; the steps marked NOT AS EXPECTED say what differs", s.met, s.steps)
	}
	fmt.Fprintf(s.out, "\ndemo: %d of %d as expected\n", s.met, s.steps)
	return nil
}
