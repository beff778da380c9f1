package machinehook_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/control/machinehook"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// TestResourceFinder checks that a kind counts as absent only if every answer shows that. Single
// requests fail, which a real API server cannot be made to do. TestHooks uses a real one.
func TestResourceFinder(t *testing.T) {
	const group, v1, v2, v3 = machine.ClusterAPIGroup, "v1beta1", "v1beta2", "v1beta3"
	for name, c := range map[string]struct {
		// served are the versions of the group, and kinds those with the kind Machine.
		served, kinds []string
		// failing is the request that fails: of the group, or of a version.
		failing string
		want    string // a version, "absent" or "unknown"
	}{
		"no group":                         {want: "absent"},
		"group without the kind":           {served: []string{v1, v2, v3}, want: "absent"},
		"both versions":                    {served: []string{v1, v2}, kinds: []string{v1, v2}, want: v2},
		"the older version":                {served: []string{v1, v3}, kinds: []string{v1, v3}, want: v1},
		"a version that cannot be read":    {served: []string{v2, v3}, kinds: []string{v3}, want: "unknown"},
		"the group fails":                  {served: []string{v2}, kinds: []string{v2}, failing: group, want: "unknown"},
		"one of two versions fails":        {served: []string{v1, v2}, kinds: []string{v1, v2}, failing: v2, want: v1},
		"the version of the kind fails":    {served: []string{v1, v2}, kinds: []string{v2}, failing: v2, want: "unknown"},
		"a version that is not read fails": {served: []string{v2, v3}, kinds: []string{v2}, failing: v3, want: v2},
		"any other version fails":          {served: []string{v2, v3}, failing: v3, want: "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			answers := map[string]any{}
			if len(c.served) > 0 {
				answers["/apis/cluster.x-k8s.io"] = groupOf(c.served)
			}
			for _, version := range c.served {
				list := metav1.APIResourceList{APIResources: []metav1.APIResource{
					{Name: "clusters", Kind: "Cluster"}, {Name: "clusters/machines", Kind: machine.KindMachine},
				}}
				if slices.Contains(c.kinds, version) {
					found := metav1.APIResource{Name: machine.Resource, Kind: machine.KindMachine}
					list.APIResources = append(list.APIResources, found)
				}
				answers["/apis/cluster.x-k8s.io/"+version] = list
			}
			var requests []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests = append(requests, r.URL.Path)
				answer, isServed := answers[r.URL.Path]
				w.Header().Set("Content-Type", "application/json")
				switch {
				case c.failing != "" && strings.HasSuffix(r.URL.Path, c.failing):
					w.WriteHeader(http.StatusInternalServerError)
				case !isServed:
					w.WriteHeader(http.StatusNotFound)
				}
				_ = json.NewEncoder(w).Encode(answer)
			}))
			defer server.Close()
			client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
			require.NoError(t, err)
			resource, isServed, err := machinehook.NewResourceFinder(client.RESTClient())(
				t.Context(), schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine}, []string{v2, v1})
			got := resource.Version
			switch {
			case err != nil:
				got = "unknown"
			case !isServed:
				got = "absent"
			default:
				require.Equal(t, machines().GroupResource(), resource.GroupResource())
			}
			require.Equal(t, c.want, got)
			slices.Sort(requests)
			require.Equal(t, slices.Compact(slices.Clone(requests)), requests, "nothing is read twice")
		})
	}
}

func groupOf(versions []string) metav1.APIGroup {
	group := metav1.APIGroup{Name: machine.ClusterAPIGroup}
	for _, version := range slices.Backward(versions) { // The API server has the latest one first.
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: machine.ClusterAPIGroup + "/" + version, Version: version,
		})
	}
	return group
}
