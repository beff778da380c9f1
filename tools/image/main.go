// Command image packs statically linked programs into a container image that is built FROM
// scratch. The image depends on the programs and the arguments only, not on the machine, the
// time or the directory. No container engine is required. `docker load`, `ctr images import`,
// `crane push` and `skopeo copy docker-archive:` can read the result. `image index` joins the images
// of several architectures.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// imageOptions are the values of the flags.
type imageOptions struct {
	program, tag, arch, out string
	// more are further programs in the image.
	more []string
	// epoch is the modification time of all files in the image, in seconds since 1970.
	epoch int64
	// limit is the largest size of the unpacked image, in MiB.
	limit  int64
	labels map[string]string
}

func run(args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "index" {
		return index(args[1:], out)
	}
	s := imageOptions{labels: map[string]string{}}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&s.program, "program", "", "`file` to pack, the entry point of the image")
	flags.Func("also", "another `file` to pack; can be repeated", func(file string) error {
		s.more = append(s.more, file)
		return nil
	})
	flags.StringVar(&s.tag, "tag", "", "`name:version` of the image")
	flags.StringVar(&s.arch, "arch", "", "`GOARCH` of the program")
	flags.StringVar(&s.out, "out", "", "`file` to write")
	flags.Int64Var(&s.epoch, "epoch", 0, "modification time of all files, in `seconds` since 1970")
	flags.Int64Var(&s.limit, "limit", 40, "largest size of the unpacked image, in `MiB`")
	flags.Func("label", "label `key=value`; can be repeated", func(text string) error {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("want key=value")
		}
		s.labels[key] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	return pack(s, out)
}

func pack(s imageOptions, out io.Writer) error {
	tag, err := name.NewTag(s.tag)
	if err != nil {
		return fmt.Errorf("parsing the tag: %w", err)
	}
	layer, err := layerOf(s)
	if err != nil {
		return err
	}
	image, err := imageOf(s, layer)
	if err != nil {
		return fmt.Errorf("creating image %s: %w", s.tag, err)
	}
	id, err := image.ConfigName()
	if err != nil {
		return fmt.Errorf("creating image %s: %w", s.tag, err)
	}
	if err := tarball.WriteToFile(s.out, tag, image); err != nil {
		return fmt.Errorf("writing %s: %w", s.out, err)
	}
	fmt.Fprintf(out, "%s  %s\n", id, s.tag)
	return nil
}

// layerOf returns the file system of the image. It contains only the programs, owned by root.
func layerOf(s imageOptions) (v1.Layer, error) {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	for _, file := range append([]string{s.program}, s.more...) {
		if err := addProgram(w, file, s.epoch); err != nil {
			return nil, fmt.Errorf("packing %s: %w", file, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing the program: %w", err)
	}
	if size := int64(files.Len()); size > s.limit<<20 {
		return nil, fmt.Errorf("packing the program: the image has %d bytes, more than %d MiB; "+
			"inspect the program with go version -m and go tool nm -size", size, s.limit)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	})
	if err != nil {
		return nil, fmt.Errorf("packing the program: %w", err)
	}
	return layer, nil
}

func addProgram(w *tar.Writer, file string, epoch int64) error {
	program, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	err = w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: filepath.Base(file), Mode: 0o755, Size: int64(len(program)),
		ModTime: time.Unix(epoch, 0).UTC(),
		Format:  tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = w.Write(program)
	return err
}

func imageOf(s imageOptions, layer v1.Layer) (v1.Image, error) {
	created := v1.Time{Time: time.Unix(s.epoch, 0).UTC()}
	image, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer: layer, History: v1.History{Created: created, CreatedBy: "holdfast/tools/image"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", s.arch, created
	config.Config.Entrypoint = []string{"/" + filepath.Base(s.program)}
	config.Config.Labels = s.labels
	return mutate.ConfigFile(image, config)
}

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
