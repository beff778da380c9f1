package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Reads opens every file below some directories. A test calls it with what the programs that it starts read, such as
// manifests, or the sources of what it builds: go test repeats an old result for as long as the files stay the same that the
// test itself has opened, and does not know of others (go help test).
func Reads(dirs ...string) error {
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
			return fmt.Errorf("opening what a test depends on: %w", err)
		}
	}
	return nil
}
