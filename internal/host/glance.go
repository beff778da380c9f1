package host

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// glance tells the few processes that may be etcd servers from the thousands that are not, with as little as that takes:
// a whole look at each of 2,000 processes would cost more than all the rest of a look at the host.
type glance struct {
	table *os.File
	// names are those of programs with etcd inside.
	names []string
	buf   [4096]byte
}

func newGlance(dir string) (*glance, error) {
	table, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, l := range layouts() {
		if l.program.embeds {
			names = append(names, l.program.name, l.program.comm())
		}
	}
	return &glance{table: table, names: names}, nil
}

func (g *glance) close() { _ = g.table.Close() } // nothing was written

// pids returns the processes of the table, in order.
func (g *glance) pids() ([]int, error) {
	names, err := g.table.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// mayServe says whether the program, the name or the command of a process is one of a program that serves etcd.
func (g *glance) mayServe(pid int) (bool, error) {
	dir := strconv.Itoa(pid)
	n, err := unix.Readlinkat(int(g.table.Fd()), dir+"/exe", g.buf[:])
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return false, err // a kernel thread has no program either
	}
	if err == nil && g.known(strings.TrimSuffix(string(g.buf[:n]), deleted)) {
		return true, nil
	}
	comm, err := g.read(dir + "/comm")
	if err != nil {
		return false, err
	}
	if g.known(string(bytes.TrimSpace(comm))) {
		return true, nil
	}
	line, err := g.read(dir + "/cmdline")
	if err != nil {
		return false, err
	}
	called, _, _ := bytes.Cut(line, []byte{0})
	return g.known(string(called)), nil
}

func (g *glance) known(program string) bool {
	base := path.Base(program)
	return isServerName(base) || slices.Contains(g.names, base)
}

// read returns the beginning of a file of the table. It is overwritten by the next one.
func (g *glance) read(name string) ([]byte, error) {
	fd, err := unix.Openat(int(g.table.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	n, err := unix.Read(fd, g.buf[:])
	if err != nil {
		return nil, err
	}
	return g.buf[:n], nil
}
