package uninstall

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestRightsWithoutList: what a user may not list is a missing right. After any other error, the
// rights are not known.
func TestRightsWithoutList(t *testing.T) {
	policies := schema.GroupVersionKind{Group: admissionGroup, Version: "v1", Kind: "MutatingAdmissionPolicy"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{policies.GroupVersion(), {Version: "v1"}})
	mapper.Add(policies, meta.RESTScopeRoot)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	resource := schema.GroupResource{Group: admissionGroup, Resource: "mutatingadmissionpolicies"}
	failed := apierrors.NewForbidden(resource, "", errors.New("no"))
	c := fake.NewClientBuilder().WithRESTMapper(mapper).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return failed },
	}).Build()

	rights, err := Rights(t.Context(), Options{Client: c})
	require.NoError(t, err)
	require.Contains(t, rights, authorizationv1.ResourceAttributes{
		Verb: "list", Group: admissionGroup, Resource: "mutatingadmissionpolicies",
	})

	failed = apierrors.NewTimeoutError("the request has timed out", 1)
	_, err = Rights(t.Context(), Options{Client: c})
	require.ErrorIs(t, err, failed)
	require.ErrorContains(t, err, "listing mutatingadmissionpolicies: ")
}
