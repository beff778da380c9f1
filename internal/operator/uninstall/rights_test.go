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
)

// failingClient serves every kind of its mapper, and fails to list objects.
type failingClient struct {
	client.Client
	mapper meta.RESTMapper
	err    error
}

func (c failingClient) RESTMapper() meta.RESTMapper { return c.mapper }

func (c failingClient) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return c.err
}

// TestRightsWithoutList: what a user may not list is a missing right. After any other error, the
// rights are not known.
func TestRightsWithoutList(t *testing.T) {
	policies := schema.GroupVersionKind{Group: admissionGroup, Version: "v1", Kind: "MutatingAdmissionPolicy"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{policies.GroupVersion(), {Version: "v1"}})
	mapper.Add(policies, meta.RESTScopeRoot)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	resource := schema.GroupResource{Group: admissionGroup, Resource: "mutatingadmissionpolicies"}
	forbidden := apierrors.NewForbidden(resource, "", errors.New("no"))

	rights, err := Rights(t.Context(), Options{Client: failingClient{mapper: mapper, err: forbidden}})
	require.NoError(t, err)
	require.Contains(t, rights, authorizationv1.ResourceAttributes{
		Verb: "list", Group: admissionGroup, Resource: "mutatingadmissionpolicies",
	})

	timeout := apierrors.NewTimeoutError("the request has timed out", 1)
	_, err = Rights(t.Context(), Options{Client: failingClient{mapper: mapper, err: timeout}})
	require.ErrorIs(t, err, timeout)
	require.ErrorContains(t, err, "listing mutatingadmissionpolicies: ")
}
