package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// index joins the packed images of several architectures in one directory that `crane push` can
// read, and prints the digest under which a registry has it.
func index(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("image index", flag.ContinueOnError)
	dir := flags.String("out", "", "`directory` to write, an OCI image layout")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || flags.NArg() == 0 {
		return errors.New("want -out DIRECTORY and a packed image for each architecture")
	}
	joined, err := indexOf(flags.Args())
	if err != nil {
		return err
	}
	digest, err := joined.Digest()
	if err != nil {
		return fmt.Errorf("creating the index: %w", err)
	}
	target, err := layout.Write(*dir, empty.Index)
	if err != nil {
		return fmt.Errorf("writing %s: %w", *dir, err)
	}
	if err := target.AppendIndex(joined); err != nil {
		return fmt.Errorf("writing %s: %w", *dir, err)
	}
	fmt.Fprintln(out, digest)
	return nil
}

// indexOf returns an index of the images in these files, each with its architecture.
func indexOf(files []string) (v1.ImageIndex, error) {
	joined := mutate.IndexMediaType(empty.Index, types.DockerManifestList)
	for _, file := range files {
		image, err := tarball.ImageFromPath(file, nil)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		joined = mutate.AppendManifests(joined, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()},
		})
	}
	return joined, nil
}
