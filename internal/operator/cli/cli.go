// Package cli has what the commands of Holdfast share: flags, usage errors, exit codes,
// the logger, the version, and ports that shut down gracefully.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
)

// The exit codes of every command.
const (
	ExitSuccess = 0
	ExitFailure = 1
	ExitUsage   = 2
)

// Run calls a command with the arguments and streams of this process, and returns its
// exit code. The context ends with SIGTERM or SIGINT. A closed pipe is an error of a write: by
// default it ends the process, also between two changes that belong together.
func Run(command func(ctx context.Context, args []string, out, errOut io.Writer) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGPIPE)
	return command(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// usageError is a mistake on the command line. Its text names the mistake and what to
// write instead.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// UsageErrorf returns an error for which ReportError returns ExitUsage.
func UsageErrorf(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// exitError is an exit code without a message.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// ExitWith returns an error for which ReportError prints nothing and returns the code.
func ExitWith(code int) error { return exitError(code) }

// ReportError prints the error of a command, if there is one, and returns the exit code.
// After a usage error it also prints the command line that shows the help.
func ReportError(errOut io.Writer, name, help string, err error) int {
	var exit exitError
	switch {
	case err == nil:
		return ExitSuccess
	case errors.As(err, &exit):
		return int(exit)
	}
	fmt.Fprintf(errOut, "%s: %v\n", name, err)
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(errOut, "Run `%s` for usage.\n", help)
		return ExitUsage
	}
	return ExitFailure
}

// NewFlagSet returns a set of flags that prints nothing by itself: a command prints its
// own help, and ReportError prints errors.
func NewFlagSet(name string) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return set
}

// ParseFlags parses arguments that are all flags. Then it runs the steps that check and complete
// their values, until one fails. The error is a usage error, or flag.ErrHelp. The example is a flag
// that the command takes.
func ParseFlags[V any](set *flag.FlagSet, args []string, example string, values V, steps ...func(V) error) error {
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return UsageErrorf("%v", err)
	case set.NArg() > 0:
		return UsageErrorf("unexpected argument %q; %s has flags only, such as %s", set.Arg(0), set.Name(), example)
	}
	for _, step := range steps {
		if err := step(values); err != nil {
			return err
		}
	}
	return nil
}

// LogFlags are the flags --log-level and --log-format as they were written.
type LogFlags struct{ level, format string }

// AddTo declares the flags.
func (f *LogFlags) AddTo(set *flag.FlagSet) {
	set.StringVar(&f.level, "log-level", "info", "")
	set.StringVar(&f.format, "log-format", "json", "")
}

// Options returns the values of the flags, or a usage error.
func (f *LogFlags) Options() (o LogOptions, err error) {
	if err := o.Level.UnmarshalText([]byte(f.level)); err != nil {
		return o, UsageErrorf("--log-level=%q is unknown; use debug, info, warn or error", f.level)
	}
	if f.format != "json" && f.format != "text" {
		return o, UsageErrorf("--log-format=%q is unknown; use json or text", f.format)
	}
	o.JSON = f.format == "json"
	return o, nil
}

// LogOptions describes a logger. The zero value writes text from level info on.
type LogOptions struct {
	Level slog.Level
	JSON  bool
}

// NewLogger returns a logger that writes to w.
func (o LogOptions) NewLogger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: o.Level}
	if o.JSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// Version returns the version that the linker wrote into the program: that of the image,
// with the commit. If it is empty, Version returns what the Go toolchain recorded. The
// version of Go follows.
func Version(stamped string) string {
	if stamped != "" {
		return stamped + " " + runtime.Version()
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " with changes"
		}
	}
	return info.Main.Version + revision + modified + " " + info.GoVersion
}

// Quoted returns the text as one word of a POSIX shell.
func Quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
