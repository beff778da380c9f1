package release_test

import (
	"bufio"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

const (
	user     = "release"
	password = "secret"
)

// version returns the version of the chart, which `make release-check` compares with the tag.
func version(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../charts/holdfast/Chart.yaml")
	require.NoError(t, err)
	var chart struct{ AppVersion string }
	require.NoError(t, yaml.Unmarshal(text, &chart))
	return chart.AppVersion
}

// A registry is that of crane behind TLS and a login.
type registry struct {
	host, repository, authority string
}

func newRegistry(t *testing.T) registry {
	t.Helper()
	crane, err := process.Binary("crane")
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), crane, "registry", "serve", "--address", "127.0.0.1:0")
	log, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Wait() }) // it ends with the context of the test
	line, err := bufio.NewReader(log).ReadString('\n')
	require.NoError(t, err)
	_, port, found := strings.Cut(strings.TrimSpace(line), "serving on port ")
	require.True(t, found, line)

	backend := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + port})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, secret, _ := r.BasicAuth()
		if name != user || secret != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(block), 0o600))
	host := server.Listener.Addr().String()
	return registry{host: host, repository: host + "/holdfast-dev", authority: authority}
}

// A release is the files of a release, with programs of a few bytes.
type release struct {
	dir, indexes string
	env          []string
}

func newRelease(t *testing.T, r registry) release {
	t.Helper()
	base := t.TempDir()
	s := release{dir: filepath.Join(base, "release"), indexes: filepath.Join(base, "indexes"), env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "SSL_CERT_FILE=" + r.authority,
		"VERSION=" + version(t), "REPOSITORY=" + r.repository, "SOURCE_DATE_EPOCH=1000000000",
	}}
	require.NoError(t, os.MkdirAll(s.dir, 0o700))
	require.NoError(t, os.MkdirAll(s.indexes, 0o700))
	digests := ""
	for _, image := range images() {
		program := filepath.Join(base, image)
		require.NoError(t, os.WriteFile(program, []byte("the program "+image), 0o600))
		join := []string{"index", "-out", filepath.Join(s.indexes, image)}
		for _, arch := range []string{"amd64", "arm64"} {
			file := program + "-" + arch + ".tar"
			s.run(t, "pack-image", "-program", program, "-tag", image+":"+version(t), "-arch", arch,
				"-epoch", "1000000000", "-out", file)
			join = append(join, file)
		}
		digests += image + " " + s.run(t, "pack-image", join...)
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "image-digests.txt"), []byte(digests), 0o600))
	s.run(t, "tools/release/chart", s.dir)
	return s
}

func (s release) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := s.try(t, name, args...)
	require.NoError(t, err)
	return out
}

// try runs a script of this repository, or a program of bin/, and returns its standard output. The
// error contains standard error.
func (s release) try(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	program := filepath.Join(root, name)
	if !strings.Contains(name, "/") {
		program, err = process.Binary(name)
		require.NoError(t, err)
	}
	command := exec.CommandContext(t.Context(), program, args...)
	command.Env = s.env
	out, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("running %s %q: %w: %s", name, args, err, exit.Stderr)
	}
	return string(out), err
}
