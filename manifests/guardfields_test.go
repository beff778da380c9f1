package manifests_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// freeFields returns the fields of a guard pod that the policy holdfast-guards leaves open, and
// why.
func freeFields() map[string]string {
	return map[string]string{
		"metadata.annotations.holdfast.dev/node-uid": "a wrong one makes the leader replace the pod",
		"metadata.ownerReferences.name":              "a wrong one makes the API server delete the pod",
		"metadata.ownerReferences.uid":               "a wrong one makes the API server delete the pod",
		"spec.containers.image":                      "the policy holdfast-guard-image compares it with the agent",
		"spec.imagePullSecrets":                      "the policy holdfast-guard-image compares them with the agent",
		"spec.nodeSelector":                          "the plugin PodNodeSelector adds it; a wrong one ends the pod",
		"spec.preemptionPolicy":                      "the plugin Priority adds it; nothing schedules the pod",
		"spec.priorityClassName":                     "the plugin Priority adds it; spec.priority is limited",
	}
}

// serverFields returns the fields that the API server sets, whatever a client writes, or that
// belong to the path of the request.
func serverFields() []string {
	return []string{
		"apiVersion", "kind",
		"metadata.creationTimestamp", "metadata.deletionGracePeriodSeconds", "metadata.deletionTimestamp",
		"metadata.generation", "metadata.managedFields", "metadata.namespace", "metadata.resourceVersion",
		"metadata.selfLink", "metadata.uid", "status",
	}
}

// testGuardFields changes every field that a pod can have, one at a time. The policy must refuse
// each change, also to an invalid value, and of a field that this API server does not know yet. So
// the policy is applied to objects of a kind without a schema.
func testGuardFields(t *testing.T, server *apiserver.Server) {
	objects := schemaless(t, server)
	create := func(pod *corev1.Pod) error {
		text, err := json.Marshal(pod)
		require.NoError(t, err)
		var fields map[string]any
		require.NoError(t, json.Unmarshal(text, &fields))
		fields["apiVersion"], fields["kind"] = "test.holdfast.dev/v1", "PodLike"
		options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		_, err = objects.Create(t.Context(), &unstructured.Unstructured{Object: fields}, options)
		return err
	}
	pod := guardPod(agentSpec(t))
	require.NoError(t, create(pod))
	accepted, changes := map[string]bool{}, 0
	c := fieldChanger{func(path string) {
		changes++
		if err := create(pod); err == nil {
			accepted[path] = true
		} else {
			// The API server itself requires a name and the fields of an owner.
			require.Regexp(t, `ValidatingAdmissionPolicy 'guard-fields'|is invalid: metadata\.(name|ownerReferences)`, err, path)
		}
	}}
	c.change(reflect.ValueOf(pod).Elem(), "")
	require.Equal(t, guardPod(agentSpec(t)), pod, "each change is undone")
	require.Greater(t, changes, 150)
	for path := range accepted {
		require.Contains(t, freeFields(), path, "the policy holdfast-guards accepts another value of this field")
	}
	for path := range freeFields() {
		require.Contains(t, accepted, path, "not free any more")
	}
}

// schemalessKind is a kind whose objects may have any field, and the binding of its policy.
const schemalessKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podlikes.test.holdfast.dev}
spec:
  group: test.holdfast.dev
  names: {kind: PodLike, plural: podlikes}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: guard-fields}
spec: {policyName: guard-fields, validationActions: [Deny]}
`

// schemaless returns objects of a kind without a schema, which the policy holdfast-guards limits
// like pods, with the token of the webhook.
func schemaless(t *testing.T, server *apiserver.Server) dynamic.ResourceInterface {
	t.Helper()
	kind := schema.GroupVersionResource{Group: "test.holdfast.dev", Version: "v1", Resource: "podlikes"}
	policy := one[admissionv1.ValidatingAdmissionPolicy](t, shipped(t), "ValidatingAdmissionPolicy", "holdfast-guards")
	policy.Name = "guard-fields"
	rule := &policy.Spec.MatchConstraints.ResourceRules[0].Rule
	rule.APIGroups, rule.Resources = []string{kind.Group}, []string{kind.Resource}
	text, err := yaml.Marshal(policy)
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"kustomization.yaml": "resources: [kind.yaml, policy.yaml]", "kind.yaml": schemalessKind, "policy.yaml": string(text),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	createRole(t, server, kind.Resource, rbacv1.PolicyRule{
		APIGroups: []string{kind.Group}, Resources: []string{kind.Resource}, Verbs: []string{"create"},
	})
	bindRole(t, server, kind.Resource, rbacv1.UserKind, "system:serviceaccount:holdfast-system:holdfast-webhook")
	require.NoError(t, server.Apply(t.Context(), dir))
	t.Cleanup(func() {
		_, err := server.Kubectl(context.WithoutCancel(t.Context()), "delete", "-k", dir)
		require.NoError(t, err)
	})
	config, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", "holdfast-webhook", "")
	require.NoError(t, err)
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return client.Resource(kind).Namespace("holdfast-system")
}

// A fieldChanger changes each field of a value in turn, reports its path, and restores it.
type fieldChanger struct{ report func(path string) }

func (c fieldChanger) change(v reflect.Value, path string) {
	switch {
	case slices.Contains(serverFields(), path):
	case isLeaf(v.Type()):
		c.try(v, path, otherValue(v), reflect.Zero(v.Type()))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			c.change(v.Field(i), joinPath(path, v.Type().Field(i)))
		}
	case v.Kind() == reflect.Pointer && v.IsNil():
		c.try(v, path, sample(v.Type()))
	case v.Kind() == reflect.Pointer:
		c.change(v.Elem(), path)
		c.try(v, path, reflect.Zero(v.Type()))
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			c.change(v.Index(i), path)
		}
		c.try(v, path, reflect.AppendSlice(v.Slice3(0, v.Len(), v.Len()), sample(v.Type())), reflect.Zero(v.Type()))
	case v.Kind() == reflect.Map:
		c.changeMap(v, path)
	}
}

// changeMap changes and removes each value of a map, and adds one.
func (c fieldChanger) changeMap(v reflect.Value, path string) {
	changed := func(key, value reflect.Value) reflect.Value {
		all := reflect.MakeMap(v.Type())
		for _, k := range v.MapKeys() {
			all.SetMapIndex(k, v.MapIndex(k))
		}
		all.SetMapIndex(key, value)
		return all
	}
	for _, key := range v.MapKeys() {
		c.try(v, path+"."+key.String(), changed(key, otherValue(v.MapIndex(key))))
		c.try(v, path, changed(key, reflect.Value{}))
	}
	added := sample(v.Type()).MapKeys()[0]
	c.try(v, path, changed(added, sample(v.Type().Elem())), reflect.Zero(v.Type()))
}

// try sets a value to others, and back.
func (c fieldChanger) try(v reflect.Value, path string, others ...reflect.Value) {
	before := reflect.New(v.Type()).Elem()
	before.Set(v)
	for _, other := range others {
		if reflect.DeepEqual(other.Interface(), before.Interface()) || isEmpty(other) && isEmpty(before) {
			continue
		}
		v.Set(other)
		c.report(path)
	}
	v.Set(before)
}

func isEmpty(v reflect.Value) bool {
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() == 0
	}
	return v.IsZero()
}

// joinPath returns the path of a field in JSON.
func joinPath(path string, field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return strings.Trim(path+"."+name, ".")
}

// isLeaf reports whether a type has no parts of its own in JSON.
func isLeaf(t reflect.Type) bool {
	composite := []reflect.Kind{reflect.Struct, reflect.Pointer, reflect.Slice, reflect.Map}
	return textSamples()[t] != nil || !slices.Contains(composite, t.Kind())
}

// textSamples returns values of the types that have a text in JSON of their own.
func textSamples() map[reflect.Type]any {
	samples := map[reflect.Type]any{}
	for _, value := range []any{
		resource.MustParse("96"), metav1.Now(), *metav1.NewFieldsV1("{}"), intstr.FromInt32(96),
	} {
		samples[reflect.TypeOf(value)] = value
	}
	return samples
}

// otherValue returns another value of a leaf.
func otherValue(v reflect.Value) reflect.Value {
	other := sample(v.Type())
	if v.Kind() == reflect.Bool {
		other.SetBool(!v.Bool())
	}
	return other
}

// sample returns a value of a type in which every field is set.
func sample(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch {
	case textSamples()[t] != nil:
		v.Set(reflect.ValueOf(textSamples()[t]))
	case t.Kind() == reflect.String:
		v.SetString("example.org") // also valid in metadata
	case t.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(2_000_001_000) // the priority of system-node-critical
	case t.Kind() == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(sample(t.Elem()))
	case t.Kind() == reflect.Slice:
		v.Set(reflect.Append(v, sample(t.Elem())))
	case t.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(sample(t.Key()), sample(t.Elem()))
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			v.Field(i).Set(sample(t.Field(i).Type))
		}
	}
	return v
}
