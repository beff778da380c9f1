//go:build drainers

package drainers

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// applyDefinitions applies the CustomResourceDefinitions of a directory of a tool's module.
func (r *rig) applyDefinitions(tool, module string, dirs ...string) {
	r.t.Helper()
	root, err := moduleDir(tool, module)
	require.NoError(r.t, err)
	args := []string{"apply", "--server-side"}
	for _, dir := range dirs {
		args = append(args, "-f", filepath.Join(root, dir))
	}
	out, err := r.API.Kubectl(r.t.Context(), args...)
	require.NoError(r.t, err, "%s", out)
	out, err = r.API.Kubectl(r.t.Context(), "wait", "--for=condition=Established", "--timeout=60s", "crds", "--all")
	require.NoError(r.t, err, "%s", out)
}

// create creates an object of YAML, as soon as its kind is served.
func (r *rig) create(format string, args ...any) *unstructured.Unstructured {
	r.t.Helper()
	made := &unstructured.Unstructured{}
	require.NoError(r.t, yaml.Unmarshal(fmt.Appendf(nil, format, args...), made))
	r.wait("the creation of "+made.GetKind()+" "+made.GetName(), func(ctx context.Context) error {
		return r.client.Create(ctx, made)
	})
	return made
}

// patch changes an object with a merge patch.
func (r *rig) patch(o *unstructured.Unstructured, patch string) {
	r.t.Helper()
	require.NoError(r.t, r.client.Patch(r.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// get returns the current version of an object, or nil if it is gone.
func (r *rig) get(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	current := o.DeepCopy()
	err := r.client.Get(ctx, client.ObjectKeyFromObject(o), current)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return current, err
}

// condition returns the status, reason and message of a condition.
func condition(o *unstructured.Unstructured, of string) (status, reason, message string) {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		fields, ok := c.(map[string]any)
		if ok && fields["type"] == of {
			return fmt.Sprint(fields["status"]), fmt.Sprint(fields["reason"]), fmt.Sprint(fields["message"])
		}
	}
	return "", "", ""
}

// waitForDeletion deletes an object as soon as the API server accepts that.
func (r *rig) waitForDeletion(o *unstructured.Unstructured) {
	r.t.Helper()
	r.wait("the deletion of "+o.GetKind()+" "+o.GetName()+" to be allowed", func(ctx context.Context) error {
		return r.client.Delete(ctx, o)
	})
}

// waitForEnd waits until an object is gone.
func (r *rig) waitForEnd(o *unstructured.Unstructured) {
	r.t.Helper()
	r.wait("the end of "+o.GetKind()+" "+o.GetName(), func(ctx context.Context) error {
		current, err := r.get(ctx, o)
		if err == nil && current != nil {
			status, reason, message := condition(current, "Deleting")
			err = fmt.Errorf("it exists; its condition Deleting is %s, %s: %s", status, reason, message)
		}
		return err
	})
}
