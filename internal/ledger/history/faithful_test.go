package history

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// What the histories rest on: the API server that is played answers as the real one does, whatever the order of the writes
// that the webhook and the agents make.
func TestThePlayedAPIServerAnswersAsTheRealOne(t *testing.T) {
	server := testenv.NewAPIServer(t)
	root, err := testenv.RepositoryRoot()
	require.NoError(t, err)
	_, err = server.Kubectl(t.Context(), "apply", "--server-side", "-f", filepath.Join(root, "manifests/base/crd/holdfast.dev_etcdclusters.yaml"))
	require.NoError(t, err)
	_, err = server.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "crd/etcdclusters.holdfast.dev")
	require.NoError(t, err)
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	config := server.Admin()
	config.QPS = -1
	real, err := client.New(config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	for i := range 8 {
		p := &pair{t: t, real: real, played: newServer(), choices: fromSeed(uint64(i + 1)), name: fmt.Sprintf("c%d", i+1), node: fmt.Sprintf("n%d", i+1)}
		for range 50 {
			p.step()
		}
	}
}

// pair is one object of each kind, in both API servers.
type pair struct {
	t          *testing.T
	real       client.Client
	played     *server
	choices    *choices
	name, node string
}

// sides are the two objects as they are; nil if there is none.
type sides[T any] struct{ real, played *T }

func (p *pair) clusters() sides[v1alpha1.EtcdCluster] {
	p.t.Helper()
	found := &v1alpha1.EtcdCluster{}
	if err := p.real.Get(p.t.Context(), client.ObjectKey{Name: p.name}, found); err != nil {
		require.True(p.t, apierrors.IsNotFound(err), err)
		found = nil
	}
	return sides[v1alpha1.EtcdCluster]{found, p.played.clusters.objects[p.name]}
}

func (p *pair) step() {
	p.t.Helper()
	before := p.clusters()
	what, real, played := p.operation(before)
	p.t.Logf("%s %s: %v", p.name, what, played)
	require.Equal(p.t, classOf(p.t, real), classOf(p.t, played), "%s: %v, played: %v", what, real, played)
	after := p.clusters()
	require.Equal(p.t, after.real == nil, after.played == nil, what)
	if after.real != nil {
		require.True(p.t, equality.Semantic.DeepEqual(bare(after.real), bare(after.played)), "%s:\n%s\nplayed:\n%s", what, encoded(p.t, bare(after.real)), encoded(p.t, bare(after.played)))
		if before.real != nil && before.real.UID == after.real.UID {
			// The real one also makes a version when only the list of field managers changes.
			same := equality.Semantic.DeepEqual(bare(before.real), bare(after.real))
			require.Equal(p.t, same, before.played.ResourceVersion == after.played.ResourceVersion, "%s: a new version", what)
			require.True(p.t, same || before.real.ResourceVersion != after.real.ResourceVersion, "%s: a new version", what)
		}
	}
	n := &corev1.Node{}
	err := p.real.Get(p.t.Context(), client.ObjectKey{Name: p.node}, n)
	m := p.played.nodes.objects[p.node]
	require.Equal(p.t, err == nil, m != nil, "%s: %v", what, err)
	if m != nil {
		require.Equal(p.t, n.Labels, m.Labels, what)
		require.Equal(p.t, n.Annotations, m.Annotations, what)
		require.Equal(p.t, n.DeletionTimestamp == nil, m.DeletionTimestamp == nil, what)
	}
}

// classOf is what the webhook tells errors apart by.
func classOf(t *testing.T, err error) string {
	t.Helper()
	if field := "metadata.uid"; apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid) && strings.Contains(err.Error(), field) {
		return "invalid " + field
	}
	for class, is := range map[string]func(error) bool{
		"not found": apierrors.IsNotFound, "exists": apierrors.IsAlreadyExists, "conflict": apierrors.IsConflict, "invalid": apierrors.IsInvalid,
	} {
		if is(err) {
			return class
		}
	}
	require.NoError(t, err)
	return "done"
}

// bare is the part of an object that the webhook may read, but what no two API servers would choose alike.
func bare(c *v1alpha1.EtcdCluster) *v1alpha1.EtcdCluster {
	c = c.DeepCopy()
	c.TypeMeta = metav1.TypeMeta{}
	c.ObjectMeta = metav1.ObjectMeta{Name: c.Name, Annotations: c.Annotations, Labels: c.Labels}
	return c
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.MarshalIndent(v, "", " ")
	require.NoError(t, err)
	return raw
}

// operation does one thing to both sides.
func (p *pair) operation(now sides[v1alpha1.EtcdCluster]) (what string, real, played error) {
	if now.real == nil || p.choices.chance(20) {
		return p.create()
	}
	switch p.choices.of(9) {
	case 0:
		return p.grants(now)
	case 1:
		return p.bindings(now)
	case 2:
		return p.nonce(now)
	case 3:
		return p.annotation(now)
	case 4, 5:
		return p.observation()
	case 6:
		return p.sweep(now)
	case 7:
		return p.summary()
	}
	return p.aboutNode()
}

func (p *pair) create() (string, error, error) {
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: p.name, Annotations: map[string]string{"holdfast.dev/made-for": "n1"}}}
	if p.choices.of(2) == 1 {
		c.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "n1", NodeUID: "u1"}}
	}
	_, played := p.played.createCluster(c)
	return "create", p.real.Create(p.t.Context(), c.DeepCopy()), played
}

// patch makes the same patch on both sides, each with the UID that its own object has, or a wrong one.
func (p *pair) patch(what string, now sides[v1alpha1.EtcdCluster], status bool, kind types.PatchType, body func(uid types.UID) any) (string, error, error) {
	wrong := p.choices.chance(8)
	on := func(uid types.UID) []byte {
		if wrong {
			uid = "wrong"
		}
		raw, err := json.Marshal(body(uid))
		require.NoError(p.t, err)
		return raw
	}
	target := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
	var real, played error
	if status {
		real = p.real.Status().Patch(p.t.Context(), target, client.RawPatch(kind, on(now.real.UID)), client.FieldOwner("w"))
		_, played = p.played.patchClusterStatus(p.name, kind, on(now.played.UID))
	} else {
		real = p.real.Patch(p.t.Context(), target, client.RawPatch(kind, on(now.real.UID)), client.FieldOwner("w"))
		_, played = p.played.patchCluster(p.name, kind, on(now.played.UID))
	}
	return fmt.Sprintf("%s (wrong UID %t) %s", what, wrong, on("UID")), real, played
}
