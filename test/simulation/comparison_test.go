package simulation

import (
	"encoding/json"
	"fmt"
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
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
)

// The histories rely on this: the simulated API server answers like a real one, whatever
// the order of the writes that the webhook and the agents make.
func TestSimulatedAPIServer(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	config := storetest.NewServer(t)
	config.QPS = -1
	real, err := client.New(config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	for i := range 8 {
		p := &serverPair{
			t: t, real: real, simulated: newSimulatedAPIServer(), choices: fromSeed(uint64(i + 1)),
			name: fmt.Sprintf("c%d", i+1), node: fmt.Sprintf("n%d", i+1),
		}
		for range 50 {
			p.step()
		}
	}
}

// A serverPair is one object of each kind in both API servers.
type serverPair struct {
	t          *testing.T
	real       client.Client
	simulated  *simulatedAPIServer
	choices    *choices
	name, node string
}

// A clusterSides holds the two EtcdClusters in their current state; nil if there is none.
type clusterSides[T any] struct{ real, simulated *T }

func (p *serverPair) currentClusters() clusterSides[v1alpha1.EtcdCluster] {
	p.t.Helper()
	found := &v1alpha1.EtcdCluster{}
	if err := p.real.Get(p.t.Context(), client.ObjectKey{Name: p.name}, found); err != nil {
		require.True(p.t, apierrors.IsNotFound(err), err)
		found = nil
	}
	return clusterSides[v1alpha1.EtcdCluster]{found, p.simulated.clusters.objects[p.name]}
}

func (p *serverPair) step() {
	p.t.Helper()
	before := p.currentClusters()
	what, real, simulated := p.applyOperation(before)
	p.t.Logf("%s %s: %v", p.name, what, simulated)
	require.Equal(p.t, errorClass(p.t, real), errorClass(p.t, simulated), "%s: real error %v, simulated error %v", what,
		real, simulated)
	after := p.currentClusters()
	require.Equal(p.t, after.real == nil, after.simulated == nil, what)
	if after.real != nil {
		require.True(p.t, equality.Semantic.DeepEqual(comparable(after.real), comparable(after.simulated)),
			"%s:\n%s\nsimulated:\n%s", what, indentedJSON(p.t, comparable(after.real)),
			indentedJSON(p.t, comparable(after.simulated)))
		if before.real != nil && before.real.UID == after.real.UID {
			// The real API server also makes a version if only the list of field managers changes.
			same := equality.Semantic.DeepEqual(comparable(before.real), comparable(after.real))
			require.Equal(p.t, same, before.simulated.ResourceVersion == after.simulated.ResourceVersion, "%s: new version",
				what)
			require.True(p.t, same || before.real.ResourceVersion != after.real.ResourceVersion, "%s: new version", what)
		}
	}
	p.requireSameObservations(what)
	n := &corev1.Node{}
	err := p.real.Get(p.t.Context(), client.ObjectKey{Name: p.node}, n)
	m := p.simulated.nodes.objects[p.node]
	require.Equal(p.t, err == nil, m != nil, "%s: %v", what, err)
	if m != nil {
		require.Equal(p.t, n.Labels, m.Labels, what)
		require.Equal(p.t, n.Annotations, m.Annotations, what)
		require.Equal(p.t, n.DeletionTimestamp == nil, m.DeletionTimestamp == nil, what)
	}
}

// requireSameObservations compares the EtcdObservations of the cluster.
func (p *serverPair) requireSameObservations(what string) {
	p.t.Helper()
	list := &v1alpha1.EtcdObservationList{}
	require.NoError(p.t, p.real.List(p.t.Context(), list))
	real, simulated := map[string]v1alpha1.Observation{}, map[string]v1alpha1.Observation{}
	for _, o := range list.Items {
		if string(o.Cluster) == p.name {
			real[o.Name] = o.Observation
		}
	}
	for name, o := range p.simulated.observations.objects {
		simulated[name] = o.Observation
	}
	require.True(p.t, equality.Semantic.DeepEqual(real, simulated), "%s: %v, simulated %v", what, real, simulated)
}

// errorClass returns the properties by which the webhook distinguishes errors.
func errorClass(t *testing.T, err error) string {
	t.Helper()
	if field := "metadata.uid"; apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid) &&
		strings.Contains(err.Error(), field) {
		return "invalid " + field
	}
	for class, is := range map[string]func(error) bool{
		"not found": apierrors.IsNotFound, "exists": apierrors.IsAlreadyExists, "conflict": apierrors.IsConflict,
		"invalid": apierrors.IsInvalid,
	} {
		if is(err) {
			return class
		}
	}
	require.NoError(t, err)
	return "done"
}

// comparable returns the part of an object that the webhook may read, without the values
// that differ between any two API servers.
func comparable(c *v1alpha1.EtcdCluster) *v1alpha1.EtcdCluster {
	c = c.DeepCopy()
	c.TypeMeta = metav1.TypeMeta{}
	c.ObjectMeta = metav1.ObjectMeta{Name: c.Name, Annotations: c.Annotations, Labels: c.Labels}
	return c
}

func indentedJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.MarshalIndent(v, "", " ")
	require.NoError(t, err)
	return raw
}

// applyOperation runs one random operation on both sides.
func (p *serverPair) applyOperation(now clusterSides[v1alpha1.EtcdCluster]) (what string, real, simulated error) {
	if now.real == nil || p.choices.oneIn(20) {
		return p.createCluster()
	}
	switch p.choices.pick(9) {
	case 0:
		return p.patchGrants(now)
	case 1:
		return p.patchBindings(now)
	case 2:
		return p.patchNonce(now)
	case 3:
		return p.patchAnnotation(now)
	case 4, 5:
		return p.createObservation(now)
	case 6:
		return p.deleteObservation()
	case 7:
		return p.applySummary()
	}
	return p.changeObjects()
}

func (p *serverPair) createCluster() (string, error, error) {
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{
		Name:        p.name,
		Annotations: map[string]string{"holdfast.dev/made-for": "n1"},
	}}
	if p.choices.pick(2) == 1 {
		c.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "n1", NodeUID: "u1"}}
	}
	_, simulated := p.simulated.createCluster(c)
	return "create", p.real.Create(p.t.Context(), c.DeepCopy()), simulated
}

// patch sends the same patch to both sides, each with the UID of its own object, or with a
// wrong UID.
func (p *serverPair) patch(
	what string, now clusterSides[v1alpha1.EtcdCluster], kind types.PatchType, body func(uid types.UID) any,
) (string, error, error) {
	wrong := p.choices.oneIn(8)
	on := func(uid types.UID) []byte {
		if wrong {
			uid = "wrong"
		}
		raw, err := json.Marshal(body(uid))
		require.NoError(p.t, err)
		return raw
	}
	target := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
	real := p.real.Patch(p.t.Context(), target, client.RawPatch(kind, on(now.real.UID)), client.FieldOwner("w"))
	_, simulated := p.simulated.patchCluster(p.name, kind, on(now.simulated.UID))
	return fmt.Sprintf("%s (wrong UID %t) %s", what, wrong, on("UID")), real, simulated
}
