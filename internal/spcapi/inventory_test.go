package spcapi_test

import (
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// zipped is a text as it stands in the ConfigMap.
func zipped(t testing.TB, text []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return packed.Bytes()
}

func TestAConfigMapThatIsNoInventory(t *testing.T) {
	whole, err := spcapi.Encode(&spc.Inventory{Records: []spc.Record{full()}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		packed []byte
		says   string
	}{
		"no gzip":   {[]byte("{}"), "decompressing"},
		"cut off":   {whole[:len(whole)/2], "reading the SPC inventory"},
		"no JSON":   {zipped(t, []byte("<html>")), "reading the SPC inventory"},
		"endless":   {zipped(t, bytes.Repeat([]byte(" "), 65<<20)), "reading the SPC inventory"},
		"of a list": {zipped(t, []byte("[]")), "reading the SPC inventory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spcapi.Decode(configMap(c.packed))
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err = spcapi.Decode(&corev1.ConfigMap{})
	require.ErrorContains(t, err, "has no key inventory.json.gz")
}

// Whatever an inventory says, an agent finds an answer for its node, and writes labels that the API server takes.
func FuzzInventory(f *testing.F) {
	f.Add([]byte(`{"organization":1,"cluster":2,"as_of":"2026-11-20T12:00:00Z","records":[{"pk":1,"cluster":2,"instance_id":"a b","private_ip":"10.0.0.1/24","state":"running","pool_name":"ü"}]}`))
	f.Add([]byte(`{"records":[{"pk":1,"instance_id":"n1","provider_node_id":"i-1","state":"Deleting"},{"pk":1,"instance_id":"n1"}]}`))
	f.Add([]byte(`{"records":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		inventory, err := spcapi.Decode(configMap(zipped(t, text)))
		if err != nil {
			return
		}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{ProviderID: "aws:///z/i-1"}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "::ffff:10.0.0.1"}}
		m := spc.NewIndex(inventory).Find(n)
		require.NotEmpty(t, m.Message)
		require.Equal(t, m.Outcome == spc.Matched, m.Record != nil)
		report, err := spc.Reported(n, m, spc.Terms{})
		require.NoError(t, err)
		require.Equal(t, m.Outcome == spc.Matched, len(report.Labels) > 0)
		for key, value := range report.Labels {
			require.Empty(t, validation.IsValidLabelValue(*value), key)
		}
	})
}
