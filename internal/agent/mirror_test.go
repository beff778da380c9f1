package agent

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestAMirrorShowsWhatTheLastListShowed(t *testing.T) {
	named := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	changes := 0
	m := &mirror[*corev1.Node]{changed: func() { changes++ }, log: discard(), objects: map[string]*corev1.Node{}}
	_, known := m.all()
	require.False(t, known, "nothing was read yet, which is not the same as nothing being there")
	store := &reflected[*corev1.Node]{m}
	require.NoError(t, store.Replace([]any{named("a"), named("b")}, "5"))
	require.NoError(t, store.Replace([]any{named("b")}, "9"))
	_, there, known := m.one("a")
	require.True(t, known)
	require.False(t, there, "it was deleted while nobody watched")
	require.NoError(t, store.Add(named("c")))
	require.NoError(t, store.Delete(named("b")))
	all, _ := m.all()
	require.Len(t, all, 1)
	require.Equal(t, 4, changes)
}

// ahead is an API server whose Node has moved on and whose watch does not say so.
type ahead struct {
	typedcorev1.NodeInterface
	node      *corev1.Node
	conflicts int
}

func (a *ahead) Get(context.Context, string, metav1.GetOptions) (*corev1.Node, error) {
	return a.node.DeepCopy(), nil
}

func (a *ahead) Patch(_ context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	var guard struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &guard); err != nil {
		return nil, err
	}
	if v := guard.Metadata.ResourceVersion; v != "" && v != a.node.ResourceVersion {
		a.conflicts++
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("it has moved"))
	}
	before, err := json.Marshal(a.node)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, corev1.Node{})
	if err != nil {
		return nil, err
	}
	version, err := strconv.Atoi(a.node.ResourceVersion)
	if err != nil {
		return nil, err
	}
	a.node = &corev1.Node{}
	if err := json.Unmarshal(after, a.node); err != nil {
		return nil, err
	}
	a.node.ResourceVersion = strconv.Itoa(version + 1)
	return a.node.DeepCopy(), nil
}

func TestAWatchThatStandsStillKeepsNoNodeHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := bornHeld(testNode)
		old.UID, old.ResourceVersion = "uid-1", "5"
		moved := old.DeepCopy()
		moved.ResourceVersion = "9"
		server := &ahead{node: moved}
		l := &loop{
			cfg: Config{
				Node: testNode, Nodes: server, Tick: 10 * time.Second, Log: discard(),
				Network: func(context.Context) readiness.Facts { return open() },
			},
			own:      &mirror[*corev1.Node]{changed: func() {}, log: discard(), objects: map[string]*corev1.Node{}},
			clusters: &mirror[*v1alpha1.EtcdCluster]{changed: func() {}, log: discard(), objects: map[string]*v1alpha1.EtcdCluster{}},
			evidence: &latest[protect.HostEvidence]{}, blind: func(time.Time) string { return "" }, writer: nodepatch.NewWriter(server),
			tell: func(context.Context, *corev1.Node, event) {}, woken: newBell(),
		}
		require.NoError(t, (&reflected[*corev1.Node]{l.own}).Replace([]any{old}, "5"))
		require.NoError(t, l.pass(t.Context()))
		require.True(t, released(server.node))
		require.False(t, server.node.Spec.Unschedulable)
		require.Equal(t, 1, server.conflicts, "the first write finds out, the next ones go by what the server answered")

		again := server.node.DeepCopy()
		again.UID = "uid-2"
		require.NoError(t, (&reflected[*corev1.Node]{l.own}).Replace([]any{again}, "5"))
		current, err := l.current(t.Context())
		require.NoError(t, err)
		require.Equal(t, types.UID("uid-2"), current.UID, "another Node of the same name is another Node")

		require.NoError(t, (&reflected[*corev1.Node]{l.own}).Replace([]any{old}, "5"))
		elapse(t, trustOwn)
		current, err = l.current(t.Context())
		require.NoError(t, err)
		require.Equal(t, "5", current.ResourceVersion, "versions run backwards after a restore of the API server's etcd")
	})
}
