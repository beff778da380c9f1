package uninstall

import (
	"context"
	"io"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rights returns what Run needs in this cluster, so that it does not stop halfway. It changes
// nothing.
func Rights(ctx context.Context, o Options) ([]authorizationv1.ResourceAttributes, error) {
	o.DryRun, o.Out = true, io.Discard
	u := &uninstaller{Options: o, collectsRights: true}
	err := u.run(ctx)
	return u.rights, err
}

// need records that Run needs a right.
func (u *uninstaller) need(right authorizationv1.ResourceAttributes) {
	if !slices.Contains(u.rights, right) {
		u.rights = append(u.rights, right)
	}
}

// needFor records that Run needs a right for one object.
func (u *uninstaller) needFor(object *metav1.PartialObjectMetadata, verb string) error {
	kind := object.GroupVersionKind()
	mapping, err := u.mapping(kind.GroupKind())
	if mapping == nil {
		return err
	}
	u.need(authorizationv1.ResourceAttributes{
		Verb: verb, Group: kind.Group, Resource: mapping.Resource.Resource,
		Namespace: object.Namespace, Name: object.Name,
	})
	return nil
}
