package testenv

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Apply installs a kustomization as "kubectl apply --server-side -k <dir>" does, and returns when all of it has taken
// effect: every CustomResourceDefinition is served, every admission policy and webhook configuration is obeyed.
func (s *APIServer) Apply(ctx context.Context, dir string) error {
	begun := time.Now()
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	if err := Reads(filepath.Join(root, "manifests"), dir); err != nil { // an overlay reads what lies beside it
		return err
	}
	if _, err := s.Kubectl(ctx, "apply", "--server-side", "-k", dir); err != nil {
		return err
	}
	if err := s.waitServed(ctx); err != nil {
		return fmt.Errorf("waiting for the definitions of %s to be served: %w", dir, err)
	}
	if err := s.Obeyed(ctx); err != nil {
		return fmt.Errorf("waiting for the policies of %s to be obeyed: %w", dir, err)
	}
	s.opts.Log.Info("manifests are in effect", "dir", dir, "took", time.Since(begun).Round(time.Millisecond).String())
	return nil
}

// Kubectl runs kubectl as the administrator and returns what it prints.
func (s *APIServer) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.KubectlAs(ctx, s.Kubeconfig(), args...)
}

// KubectlAs runs kubectl with a kubeconfig and returns what it prints, what it says on stderr too.
func (s *APIServer) KubectlAs(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	binary, err := Binary("kubectl")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + s.opts.Dir, "KUBECACHEDIR=" + filepath.Join(s.opts.Dir, "kubectl")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("running kubectl %q: %w: %s", args, err, out)
	}
	return string(out), nil
}

// waitServed returns when the resources of every CustomResourceDefinition can be listed.
func (s *APIServer) waitServed(ctx context.Context) error {
	client, err := dynamic.NewForConfig(s.admin)
	if err != nil {
		return err
	}
	definitions, err := client.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range definitions.Items {
		resources, err := served(&definitions.Items[i])
		if err != nil {
			return err
		}
		for _, resource := range resources {
			err := poll(ctx, s.process, func(ctx context.Context) error {
				_, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// served returns the resources that a CustomResourceDefinition has the API server serve.
func served(definition *unstructured.Unstructured) ([]schema.GroupVersionResource, error) {
	group, _, err := unstructured.NestedString(definition.Object, "spec", "group")
	if err != nil {
		return nil, err
	}
	plural, _, err := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	if err != nil {
		return nil, err
	}
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return nil, err
	}
	var resources []schema.GroupVersionResource
	for _, version := range versions {
		fields, ok := version.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("reading the versions of %s: %w", definition.GetName(), errors.New("a version is no object"))
		}
		if on, _, err := unstructured.NestedBool(fields, "served"); err != nil || !on {
			continue
		}
		name, _, err := unstructured.NestedString(fields, "name")
		if err != nil {
			return nil, err
		}
		resources = append(resources, schema.GroupVersionResource{Group: group, Version: name, Resource: plural})
	}
	return resources, nil
}
