package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// A Version is a minor version of etcd, whose server the Makefile builds.
type Version string

// The versions that are tested, each with its module in tools/.
const (
	V34 Version = "v3.4"
	V35 Version = "v3.5"
	V36 Version = "v3.6"
	V37 Version = "v3.7"
)

// defaultVersion is the version of bin/etcd, which every kube-apiserver of a test uses.
const defaultVersion = V36

// VersionVariable names the environment variable with the version of clusters whose Options do
// not have one. `make test ETCD=v3.5` sets it.
const VersionVariable = "HOLDFAST_ETCD"

// SelectedVersion returns the version in VersionVariable, by default v3.6.
func SelectedVersion() (Version, error) {
	v := cmp.Or(Version(os.Getenv(VersionVariable)), defaultVersion)
	if known := []Version{V34, V35, V36, V37}; !slices.Contains(known, v) {
		return "", fmt.Errorf("%s is %q, want one of %v", VersionVariable, v, known)
	}
	return v, nil
}

// Binary returns the path of the server. Its base name is etcd, because that is how a server is
// found on a host.
func (v Version) Binary() (string, error) {
	if v == defaultVersion {
		return process.Binary("etcd")
	}
	name := filepath.Join("etcd-"+string(v), "etcd")
	path, err := process.Binary(name)
	if err != nil {
		return "", fmt.Errorf("finding etcd %s: there is no bin/%s; run \"make bin/%s\"", v, name, name)
	}
	return path, nil
}

// adjust changes the variables of a member to those that the version understands.
func (v Version) adjust(s map[string]string) {
	if v != V34 {
		return
	}
	// Without fsync, 3.4 does not flush the entries to the file either (wal/wal.go, sync). A
	// member that is killed then forgets what it acknowledged.
	delete(s, "ETCD_UNSAFE_NO_FSYNC")
	s["ETCD_LOGGER"] = "zap" // the default of later versions
}

// Version returns the version of members that are added.
func (c *Cluster) Version() Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// SetVersion sets the version of members that are added from now on.
func (c *Cluster) SetVersion(v Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = v
}

// ClusterVersion returns the version on which all members have agreed, as this member reports
// it. The cluster agrees on a later version some seconds after the last member runs it.
func (m *Member) ClusterVersion(ctx context.Context) (Version, error) {
	config, err := m.etcd.ClientTLS()
	if err != nil {
		return "", err
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.ClientURL+"/version", http.NoBody)
	if err != nil {
		return "", fmt.Errorf("reading the cluster version: %w", err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", fmt.Errorf("reading the cluster version: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // read-only
	var versions struct{ EtcdCluster string }
	if err := json.NewDecoder(response.Body).Decode(&versions); err != nil {
		return "", fmt.Errorf("reading the cluster version: %w", err)
	}
	return Version("v" + strings.TrimSuffix(versions.EtcdCluster, ".0")), nil
}
