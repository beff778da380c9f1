package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// modulePath identifies the root of this repository.
const modulePath = "github.com/holdfast-dev/holdfast"

// ServersVariable names a directory with servers to use instead of those in bin/. The demo sets
// it to servers of the right version that it found on the machine.
const ServersVariable = "HOLDFAST_SERVERS"

// Binary returns the absolute path of a program: of $HOLDFAST_SERVERS/<name> if it exists, and
// otherwise of bin/<name> in the repository that contains the working directory.
func Binary(name string) (string, error) {
	if dir := os.Getenv(ServersVariable); dir != "" {
		if path, err := filepath.Abs(filepath.Join(dir, name)); err == nil && isFile(path) {
			return path, nil
		}
	}
	root, err := RepositoryRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", name)
	if !isFile(path) {
		return "", fmt.Errorf("finding %s: there is no bin/%s; run \"make tools\"", name, name)
	}
	return path, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// RepositoryRoot returns the directory of the go.mod of this module, at or above the working
// directory.
func RepositoryRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("finding the repository: %w", err)
		}
		if first, _, _ := strings.Cut(string(text), "\n"); strings.TrimSpace(first) == "module "+modulePath {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding the repository: no go.mod of %s at or above %s", modulePath, start)
		}
	}
}

// TrackInputs opens every file below the given directories. A test calls it with the inputs of
// the programs that it starts, such as manifests, or the sources of what it builds. go test
// caches a result while the files that the test itself opened are unchanged. It does not know
// other inputs (go help test).
func TrackInputs(dirs ...string) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			return file.Close()
		})
		if err != nil {
			return fmt.Errorf("opening the inputs of a test: %w", err)
		}
	}
	return nil
}
