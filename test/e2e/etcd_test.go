//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// etcdUnits is an etcd cluster outside Kubernetes: systemd units on nodes, with kubespray's
// layout and TLS.
type etcdUnits struct {
	c         *kindCluster
	authority *pki.CA
	version   etcd.Version
}

func newEtcdUnits(t *testing.T, c *kindCluster) *etcdUnits {
	t.Helper()
	authority, err := pki.NewCA("etcd-ca")
	require.NoError(t, err)
	version, err := etcd.SelectedVersion()
	require.NoError(t, err)
	return &etcdUnits{c: c, authority: authority, version: version}
}

// installFiles copies etcd and its certificates to a node. Members have the numbers of the
// workers.
func (e *etcdUnits) installFiles(t *testing.T, number int) {
	t.Helper()
	node, root := e.c.worker(number), t.TempDir()
	require.NoError(t, etcd.KubesprayFiles(root, "etcd", node).Write(e.authority, node, e.address(t, number)))
	e.c.run(t, "docker", "cp", filepath.Join(root, "etc"), node+":/")
	server, err := e.version.Binary()
	require.NoError(t, err)
	for _, program := range []string{server, filepath.Join(e.c.tools, "etcdctl")} {
		e.c.run(t, "docker", "cp", program, node+":/usr/local/bin/"+filepath.Base(program))
	}
	e.c.runOn(t, node, "chown -R root:root /etc/ssl/etcd; chmod 0700 /etc/ssl/etcd/ssl")
}

// layOut writes the settings and the unit of a member, with these initial members, like
// kubespray. The data directory is empty.
func (e *etcdUnits) layOut(t *testing.T, number int, state string, members ...int) {
	t.Helper()
	node, name, root := e.c.worker(number), "etcd"+strconv.Itoa(number), t.TempDir()
	ip, files := e.address(t, number), etcd.KubesprayFiles("/", "etcd", node)
	var initial []string
	for _, m := range members {
		initial = append(initial, fmt.Sprintf("etcd%d=https://%s:2380", m, e.address(t, m)))
	}
	settings := map[string]string{
		"ETCD_NAME": name, "ETCD_DATA_DIR": "/var/lib/etcd",
		"ETCD_ADVERTISE_CLIENT_URLS":       "https://" + ip + ":2379",
		"ETCD_INITIAL_ADVERTISE_PEER_URLS": "https://" + ip + ":2380",
		"ETCD_LISTEN_CLIENT_URLS":          "https://" + ip + ":2379,https://127.0.0.1:2379",
		"ETCD_LISTEN_PEER_URLS":            "https://" + ip + ":2380",
		"ETCD_INITIAL_CLUSTER":             strings.Join(initial, ","), "ETCD_INITIAL_CLUSTER_STATE": state,
		"ETCD_INITIAL_CLUSTER_TOKEN": "k8s_etcd", "ETCD_HEARTBEAT_INTERVAL": "100", "ETCD_ELECTION_TIMEOUT": "1000",
		"ETCD_UNSAFE_NO_FSYNC": "true", "ETCD_STRICT_RECONFIG_CHECK": "false", "ETCD_LOG_LEVEL": "warn",
		"ETCD_TRUSTED_CA_FILE": files.CA, "ETCD_CLIENT_CERT_AUTH": "true",
		"ETCD_CERT_FILE": files.Cert, "ETCD_KEY_FILE": files.Key,
		"ETCD_PEER_TRUSTED_CA_FILE": files.CA, "ETCD_PEER_CLIENT_CERT_AUTH": "True",
		"ETCD_PEER_CERT_FILE": files.Cert, "ETCD_PEER_KEY_FILE": files.Key,
		"ETCDCTL_ENDPOINTS": "https://127.0.0.1:2379", "ETCDCTL_CACERT": files.CA,
		"ETCDCTL_CERT": files.AdminCert, "ETCDCTL_KEY": files.AdminKey,
	}
	e.version.Adjust(settings)
	write(t, filepath.Join(root, "etc/etcd.env"), strings.Join(etcd.EnvLines(settings), "\n")+"\n")
	write(t, filepath.Join(root, "etc/systemd/system/etcd.service"), etcd.Unit("etcd"))
	e.c.run(t, "docker", "cp", filepath.Join(root, "etc"), node+":/")
	e.c.runOn(t, node, "chown root:root /etc/etcd.env; rm -rf /var/lib/etcd; mkdir -m 0700 /var/lib/etcd; "+
		"systemctl daemon-reload; systemctl enable etcd 2>/dev/null")
}

func (e *etcdUnits) address(t *testing.T, number int) string {
	t.Helper()
	for _, a := range e.c.node(t, e.c.worker(number)).Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	require.FailNow(t, "the node has no internal IP", e.c.worker(number))
	return ""
}

// etcdctl runs etcdctl on a member's node, with the administrator's certificate.
func (e *etcdUnits) etcdctl(t *testing.T, number int, command string) string {
	t.Helper()
	out, err := e.tryEtcdctl(t.Context(), number, command)
	require.NoError(t, err)
	return out
}

func (e *etcdUnits) tryEtcdctl(ctx context.Context, number int, command string) (string, error) {
	return e.c.tryRun(ctx, "docker", "exec", e.c.worker(number), "sh", "-ec",
		"set -a; . /etc/etcd.env; unset ETCD_NAME; exec etcdctl --command-timeout=30s "+command)
}

// waitForMember waits until a member serves.
func (e *etcdUnits) waitForMember(ctx context.Context, number int) error {
	return poll(ctx, "etcd to serve on "+e.c.worker(number), func(ctx context.Context) error {
		_, err := e.tryEtcdctl(ctx, number, "endpoint health")
		return err
	})
}

// promote makes a learner a voter as soon as it has caught up.
func (e *etcdUnits) promote(t *testing.T, number int, id string) {
	t.Helper()
	e.c.waitFor(t, "learner "+id+" to catch up", shortTimeout, func(ctx context.Context) (bool, string) {
		_, err := e.tryEtcdctl(ctx, number, "member promote "+id)
		return err == nil, fmt.Sprint(err)
	})
}

// memberID returns the ID of a member in hex, from the first member's list.
func (e *etcdUnits) memberID(t *testing.T, number int) string {
	t.Helper()
	var list struct {
		Members []struct {
			ID       uint64   `json:"ID"`
			PeerURLs []string `json:"peerURLs"`
		} `json:"members"`
	}
	require.NoError(t, json.Unmarshal([]byte(e.etcdctl(t, 1, "member list -w json")), &list))
	for _, m := range list.Members {
		if len(m.PeerURLs) == 1 && m.PeerURLs[0] == "https://"+e.address(t, number)+":2380" {
			return strconv.FormatUint(m.ID, 16)
		}
	}
	require.FailNow(t, "no such member", "etcd%d: %+v", number, list)
	return ""
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

const settleAnnotation = "holdfast.dev/settle"

// findEtcdCluster returns the EtcdCluster of the systemd units, not that of the control plane's
// etcd.
func (c *kindCluster) findEtcdCluster(ctx context.Context) (*v1alpha1.EtcdCluster, string, error) {
	out, err := c.client.RESTClient().Get().AbsPath("/apis/holdfast.dev/v1alpha1/etcdclusters").DoRaw(ctx)
	if err != nil {
		return nil, "", err
	}
	var list v1alpha1.EtcdClusterList
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, "", fmt.Errorf("reading EtcdClusters: %w", err)
	}
	for i := range list.Items {
		found := &list.Items[i]
		for _, m := range found.Spec.Members {
			if m.Node == c.controlPlane() {
				found = nil
				break
			}
		}
		if found != nil && len(found.Spec.Members) > 0 {
			found.ManagedFields = nil
			joined, err := c.joinObservations(ctx, found)
			return joined, pretty(joined) + pretty(joined.Observations), err
		}
	}
	return nil, "", errors.New("found no EtcdCluster with members on workers")
}

// joinObservations returns the EtcdCluster with the reports of the agents. A version without
// EtcdObservations has none.
func (c *kindCluster) joinObservations(ctx context.Context, of *v1alpha1.EtcdCluster) (*v1alpha1.EtcdCluster, error) {
	out, err := c.client.RESTClient().Get().AbsPath(observationPath).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return of, nil
	}
	var list v1alpha1.EtcdObservationList
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	if err != nil {
		return of, fmt.Errorf("reading EtcdObservations: %w", err)
	}
	all := make([]*v1alpha1.EtcdObservation, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return observation.Join(of, all), nil
}

const observationPath = "/apis/holdfast.dev/v1alpha1/etcdobservations"

func (c *kindCluster) etcdCluster(t *testing.T) *v1alpha1.EtcdCluster {
	t.Helper()
	found, _, err := c.findEtcdCluster(t.Context())
	require.NoError(t, err)
	return found
}

// resolveGrants resolves every open grant, like an operator after a check that the machines
// still exist. It retries while a grant is too young.
func (c *kindCluster) resolveGrants(t *testing.T) {
	t.Helper()
	for _, grant := range c.etcdCluster(t).Spec.Grants {
		c.waitFor(t, "the resolution of the grant for node "+grant.Node, longTimeout,
			func(ctx context.Context) (bool, string) {
				found, text, err := c.findEtcdCluster(ctx)
				if err != nil {
					return false, err.Error()
				}
				if !slices.ContainsFunc(found.Spec.Grants,
					func(g v1alpha1.Grant) bool { return g.NodeUID == grant.NodeUID }) {
					return true, ""
				}
				if found.Annotations[settleAnnotation] == "" {
					c.kubectl(t, "annotate", "--overwrite", "etcdcluster", found.Name,
						settleAnnotation+"="+string(grant.NodeUID))
				}
				return false, text
			})
	}
}
