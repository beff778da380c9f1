package testenv

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

// stopGrace is how long a process has to end after SIGTERM before it is killed.
const stopGrace = 5 * time.Second

// ProcessOptions say what to run.
type ProcessOptions struct {
	// Name is what messages call the process; empty means the base name of Path.
	Name string
	// Path is the executable.
	Path string
	Args []string
	// Env is the whole environment of the process: nothing of the parent's is added.
	Env []string
	// Dir is the working directory; empty means the parent's.
	Dir string
	// LogFile receives what the process writes to stdout and stderr. It is appended to, so a restarted process keeps
	// the story of its predecessor.
	LogFile string
	// OnStart is called once with the process ID before StartProcess returns, OnExit once when the process has ended
	// and before Done is closed. Either may be nil.
	OnStart func(pid int) error
	OnExit  func(pid int)
}

// Process is a running child process.
type Process struct {
	name, logFile string
	process       *os.Process
	done          chan struct{}
	exit          error
	group         errgroup.Group
}

// StartProcess starts a process in a process group of its own, so that a Ctrl-C in the terminal reaches the parent alone,
// and tells the kernel to kill it when the parent dies.
//
// The kernel means the parent's thread, not the parent: the signal of PR_SET_PDEATHSIG is sent when the thread that
// forked ends (golang/go#27505). So the goroutine that waits for the child is the one that starts it, and it keeps its
// thread until the child has ended.
func StartProcess(opts ProcessOptions) (*Process, error) {
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

// run starts the child, reports that on started, and returns when the child has ended.
func (p *Process) run(opts ProcessOptions, started chan<- error) {
	defer close(p.done)
	log, err := os.OpenFile(opts.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		started <- err
		return
	}
	defer func() { _ = log.Close() }() // the child holds a descriptor of its own; nothing was written through this one
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

// Done is closed when the process has ended and has been waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running says that the process has not ended. A paused process is running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Exited returns an error that tells how the process ended, with the end of its log, or nil while it runs.
func (p *Process) Exited() error {
	if p.Running() {
		return nil
	}
	how := "exit status 0"
	if p.exit != nil {
		how = p.exit.Error()
	}
	return fmt.Errorf("%s ended (%s); the end of its log:\n%s", p.name, how, p.LogTail(20))
}

// Stop asks the process to end and waits until it has. After 5 s, or when the context ends, it is killed. A paused
// process is resumed first, since it could not hear the request. To stop a process that has ended is no error.
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

// Kill ends the process as a power failure would, with SIGKILL, and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return p.group.Wait()
}

// Pause stops the process with SIGSTOP: its sockets stay open, the kernel still accepts connections for it, and nothing
// answers. This is what a hanging machine looks like from afar. It returns when every thread has stopped: the signal
// reaches one of them, and until that one has been on a CPU, which may take a loaded machine a tenth of a second, the others
// go on and answer. A process that has ended is not waited for.
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

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) error {
	if err := p.process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to %s: %w", s, p.name, err)
	}
	return nil
}

// LogTail returns the last lines of the log, or why there are none.
func (p *Process) LogTail(lines int) string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
