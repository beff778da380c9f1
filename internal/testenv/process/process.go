// Package process runs the binaries of the repository as child processes that die with their
// parent.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// stopGrace is the time between SIGTERM and SIGKILL.
const stopGrace = 30 * time.Second

// Options describe a process.
type Options struct {
	// Name is the name in messages, by default the base name of Path.
	Name string
	// Path is the path of the program.
	Path string
	Args []string
	// Env is the whole environment of the process. It inherits no variables.
	Env []string
	// Dir is the working directory, by default that of the parent.
	Dir string
	// LogFile receives standard output and standard error. Output is appended, so that the log
	// of an earlier process is kept.
	LogFile string
	// OnStart is called once with the process ID, before Start returns. OnExit is called once
	// after the process has ended and before Done is closed. Both may be nil.
	OnStart func(pid int) error
	OnExit  func(pid int)
}

// A Process is a child process.
type Process struct {
	name, logFile string
	process       *os.Process
	done          chan struct{}
	exit          error
	group         errgroup.Group
}

// Start starts a process in its own process group, so that Ctrl-C in the terminal reaches the
// parent only, and makes the kernel kill it when the parent dies.
//
// The kernel sends the signal of PR_SET_PDEATHSIG when the thread that forked ends, not when
// the parent process ends (golang/go#27505). Therefore the goroutine that waits for the child
// also starts it, and keeps its thread until the child has ended.
func Start(opts Options) (*Process, error) {
	if opts.Name == "" {
		opts.Name = filepath.Base(opts.Path)
	}
	p := &Process{name: opts.Name, logFile: opts.LogFile, done: make(chan struct{})}
	started := make(chan error, 1)
	p.group.Go(func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.run(opts, started)
		return nil
	})
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("starting %s: %w", p.name, err)
	}
	return p, nil
}

// run starts the child, sends the result to started, and returns when the child has ended.
func (p *Process) run(opts Options, started chan<- error) {
	defer close(p.done)
	log, err := os.OpenFile(opts.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		started <- err
		return
	}
	// The child has its own descriptor, and the parent wrote nothing.
	defer func() { _ = log.Close() }()
	cmd := &exec.Cmd{
		Path:        opts.Path,
		Args:        append([]string{opts.Path}, opts.Args...),
		Env:         append([]string{}, opts.Env...),
		Dir:         opts.Dir,
		Stdout:      log,
		Stderr:      log,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	if err = cmd.Start(); err != nil {
		started <- err
		return
	}
	p.process = cmd.Process
	if opts.OnStart != nil {
		err = opts.OnStart(cmd.Process.Pid)
	}
	if err != nil {
		err = errors.Join(err, cmd.Process.Kill())
	}
	started <- err
	p.exit = cmd.Wait()
	if opts.OnExit != nil {
		opts.OnExit(cmd.Process.Pid)
	}
}

// PID returns the process ID.
func (p *Process) PID() int { return p.process.Pid }

// Done returns a channel that is closed when the process has ended and has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process has not ended. A paused process is running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Exited returns nil while the process runs, and then an error with its exit status and the end
// of its log.
func (p *Process) Exited() error {
	if p.Running() {
		return nil
	}
	how := "exit status 0"
	if p.exit != nil {
		how = p.exit.Error()
	}
	return fmt.Errorf("%s ended (%s); end of its log:\n%s", p.name, how, p.LogTail(20))
}

// Stop sends SIGTERM and waits until the process ends. After 5 s, or when the context ends, it
// kills the process. It resumes a paused process first, because that cannot handle the signal.
// Stopping a process that has ended is not an error.
func (p *Process) Stop(ctx context.Context) error {
	if err := errors.Join(p.Resume(), p.signal(syscall.SIGTERM)); err != nil {
		return err
	}
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.done:
		return p.group.Wait()
	case <-grace.C:
	case <-ctx.Done():
	}
	return p.Kill()
}

// Kill ends the process with SIGKILL, like a power failure, and waits until it has ended.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return p.group.Wait()
}

// Pause stops the process with SIGSTOP, like a machine that hangs: its sockets stay open and
// the kernel accepts connections for it, but it does not respond. Pause returns when every
// thread has stopped. The signal reaches one thread, and until that thread has run, which may
// take a tenth of a second on a busy machine, the other threads go on. Pause returns at once
// for a process that has ended.
func (p *Process) Pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil, errors.Is(err, unix.ECHILD):
			return nil
		default:
			return fmt.Errorf("waiting for %s to stop: %w", p.name, err)
		}
	}
}

// Resume continues a paused process.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) error {
	if err := p.process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to %s: %w", s, p.name, err)
	}
	return nil
}

// LogTail returns the last lines of the log, or the error of reading it.
func (p *Process) LogTail(lines int) string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
