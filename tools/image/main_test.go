package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// packTwo packs one program for two architectures and joins the images. It returns the directory
// and the digest that index printed.
func packTwo(t *testing.T) (dir, digest string) {
	t.Helper()
	base := t.TempDir()
	program := filepath.Join(base, "holdfast-agent")
	if err := os.WriteFile(program, []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(base, "index")
	join := []string{"index", "-out", dir}
	for _, arch := range []string{"amd64", "arm64"} {
		file := filepath.Join(base, arch+".tar")
		args := []string{"-program", program, "-tag", "holdfast-agent:v0.1.0", "-arch", arch, "-epoch", "1000000000", "-out", file}
		if err := run(args, &bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
		join = append(join, file)
	}
	var printed bytes.Buffer
	if err := run(join, &printed); err != nil {
		t.Fatal(err)
	}
	return dir, strings.TrimSpace(printed.String())
}

// TestIndex pushes the index to a registry, and pulls the image of each architecture by the digest
// that a manifest would name.
func TestIndex(t *testing.T) {
	dir, digest := packTwo(t)
	if _, again := packTwo(t); again != digest {
		t.Errorf("the digest is %s the first time, and then %s", digest, again)
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/holdfast-agent"

	written, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := written.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the directory has %d entries, want the index alone: %v", len(manifest.Manifests), err)
	}
	joined, err := written.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(repository + ":v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, joined); err != nil {
		t.Fatal(err)
	}

	pinned, err := name.NewDigest(repository + "@" + digest)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := remote.Image(pinned, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || config.Config.Entrypoint[0] != "/holdfast-agent" {
			t.Errorf("%s: the image is for %s and starts %v", arch, config.Architecture, config.Config.Entrypoint)
		}
	}
	if _, err := remote.Image(pinned, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "s390x"})); err == nil {
		t.Error("there is an image for an architecture that was not packed")
	}
}

func TestIndexArguments(t *testing.T) {
	for _, args := range [][]string{{"index"}, {"index", "-out", t.TempDir()}, {"index", "-out", t.TempDir(), "none.tar"}} {
		if err := run(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v: want an error", args)
		}
	}
}
