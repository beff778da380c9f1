package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// errConflict says that the object is no longer what the decision was made from.
var errConflict = errors.New("decided from an older version")

// operation is one operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// replaceGrants makes the patch that replaces the grants decided from c, on condition that nobody has changed them since.
// `add` replaces a member of an object too, and does not mind if it was empty and so left out.
func replaceGrants(c *v1alpha1.EtcdCluster, grants []v1alpha1.Grant) []operation {
	if grants == nil {
		grants = []v1alpha1.Grant{}
	}
	return []operation{
		{Op: "test", Path: "/metadata/uid", Value: c.UID},
		{Op: "test", Path: "/spec/ledger", Value: c.Spec.Ledger},
		{Op: "replace", Path: "/spec/ledger", Value: c.Spec.Ledger + 1},
		{Op: "add", Path: "/spec/grants", Value: grants},
	}
}

// patch applies the operations to the object that c is a version of, and returns the version that they made. It fails
// with errConflict if a test among them failed.
func (b *Book) patch(ctx context.Context, c *v1alpha1.EtcdCluster, ops []operation) (*v1alpha1.EtcdCluster, error) {
	body, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encoding the change of etcd cluster %s: %w", c.Name, err)
	}
	made := &v1alpha1.EtcdCluster{}
	made.Name = c.Name
	err = b.client.Patch(ctx, made, client.RawPatch(types.JSONPatchType, body), client.FieldOwner(FieldManager))
	switch {
	case err == nil:
		b.asker.seen(made)
		return made, nil
	case apierrors.IsConflict(err):
		b.metrics.conflicts.Inc()
		return nil, errConflict
	case !apierrors.IsInvalid(err):
		return nil, fmt.Errorf("writing etcd cluster %s: %w", c.Name, err)
	}
	// A failed test and an object that the schema forbids are both answered with 422 (apiserver's handlers/patch.go).
	now, readErr := b.cluster(ctx, c.Name)
	if readErr != nil {
		return nil, readErr
	}
	if sameTested(now, c) {
		return nil, fmt.Errorf("writing etcd cluster %s: %w", c.Name, err)
	}
	b.metrics.conflicts.Inc()
	return nil, errConflict
}

// sameTested says whether everything that a patch of ours may test is the same in both versions.
func sameTested(a, b *v1alpha1.EtcdCluster) bool {
	return a.UID == b.UID && a.Spec.Ledger == b.Spec.Ledger && slices.Equal(a.Spec.Members, b.Spec.Members) &&
		a.Annotations[protect.SettleAnnotation] == b.Annotations[protect.SettleAnnotation]
}

// cluster reads one EtcdCluster from the API server.
func (b *Book) cluster(ctx context.Context, name string) (*v1alpha1.EtcdCluster, error) {
	c := &v1alpha1.EtcdCluster{}
	if err := b.reader.Get(ctx, client.ObjectKey{Name: name}, c); err != nil {
		return nil, fmt.Errorf("reading etcd cluster %s: %w", name, err)
	}
	b.asker.seen(c)
	return c, nil
}

// withGrant returns the grants with g in place of an older one for the same Node UID: every allow writes it anew.
func withGrant(grants []v1alpha1.Grant, g v1alpha1.Grant) []v1alpha1.Grant {
	return append(withoutGrant(grants, g.NodeUID), g)
}

func withoutGrant(grants []v1alpha1.Grant, uid types.UID) []v1alpha1.Grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g v1alpha1.Grant) bool { return g.NodeUID == uid })
}

// grantOf is the grant that the verdict asks for.
func grantOf(q protect.Question, v protect.Verdict) v1alpha1.Grant {
	return v1alpha1.Grant{
		NodeUID: q.Request.UID, Node: q.Request.Node, Members: v.Members, Time: metav1.Now(), User: q.User,
		BreakGlass: q.BreakGlass != nil,
	}
}

// grant writes the grant for one cluster and returns the verdict that it stands for. It decides from Nodes read now, and
// again from a newer version whenever another grant came first, without asking the agents again: what they answered is
// as true as before. decide is called with each View and says what to do; no grant is written unless it allows.
func (b *Book) grant(
	ctx context.Context, q protect.Question, c *v1alpha1.EtcdCluster, asked func() []string,
	decide func(protect.View, protect.Request) protect.Verdict,
) (protect.Verdict, error) {
	for {
		view, err := b.view(ctx, c, asked(), q.Request.Node)
		if err != nil {
			return protect.Verdict{}, err
		}
		verdict := decide(view, q.Request)
		if !verdict.Allowed || len(verdict.Members) == 0 {
			return verdict, nil
		}
		if err := exists(view.Nodes[q.Request.Node], q.Request); err != nil {
			return protect.Verdict{}, err
		}
		ops := replaceGrants(c, withGrant(c.Spec.Grants, grantOf(q, verdict)))
		if named := c.Annotations[protect.SettleAnnotation]; named == string(q.Request.UID) {
			// What an operator said of an earlier deletion of this Node is not said of this one.
			ops = append(ops, withoutSettlement(named)...)
		}
		if _, err = b.patch(ctx, c, ops); err == nil {
			return verdict, nil
		}
		if !errors.Is(err, errConflict) {
			return protect.Verdict{}, fmt.Errorf("recording the grant: %w", err)
		}
		if c, err = b.cluster(ctx, c.Name); err != nil {
			return protect.Verdict{}, err
		}
	}
}

// exists fails unless the Node of the request is there with its UID: a request that somebody made up must not be
// recorded as a deletion.
func exists(s protect.NodeState, r protect.Request) error {
	switch {
	case !s.Known:
		return fmt.Errorf("reading node %q: the API server did not answer in time", r.Node)
	case s.UID != r.UID:
		return fmt.Errorf("finding node %q: there is none with UID %q", r.Node, r.UID)
	}
	return nil
}
