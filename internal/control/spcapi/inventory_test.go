package spcapi_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func TestDecodeErrors(t *testing.T) {
	whole, err := spcapi.Encode(&spc.Inventory{Records: []spc.Record{fullRecord()}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		packed []byte
		want   string
	}{
		"no gzip":   {[]byte("{}"), "decompressing"},
		"truncated": {whole[:len(whole)/2], "reading the SPC inventory"},
		"no JSON":   {compress(t, []byte("<html>")), "reading the SPC inventory"},
		"too large": {compress(t, append(bytes.Repeat([]byte(" "), 16<<20), "{}"...)), "reading the SPC inventory"},
		"list":      {compress(t, []byte("[]")), "reading the SPC inventory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spcapi.Decode(configMap(c.packed))
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err = spcapi.Decode(&corev1.ConfigMap{})
	require.ErrorContains(t, err, "has no key inventory.json.gz")
}

// For every inventory, an agent gets a match for its Node, and only valid labels.
func FuzzInventory(f *testing.F) {
	f.Add([]byte(`{"organization":1,"cluster":2,"as_of":"2026-11-20T12:00:00Z","records":[
		{"pk":1,"cluster":2,"instance_id":"a b","private_ip":"10.0.0.1/24","state":"running","pool_name":"ü"}]}`))
	f.Add([]byte(`{"records":[{"pk":1,"instance_id":"n1","provider_node_id":"i-1","state":"Deleting"},
		{"pk":1,"instance_id":"n1"}]}`))
	f.Add([]byte(`{"records":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		inventory, err := spcapi.Decode(configMap(compress(t, text)))
		if err != nil {
			return
		}
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Spec:       corev1.NodeSpec{ProviderID: "aws:///z/i-1"},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
				{Type: corev1.NodeExternalIP, Address: "::ffff:10.0.0.1"},
			}},
		}
		m := spc.NewIndex(inventory).Find(n)
		require.NotEmpty(t, m.Message)
		require.Equal(t, m.Outcome == spc.Matched, m.Record != nil)
		report, err := spc.NewReport(n, m, spc.Terms{})
		require.NoError(t, err)
		require.Equal(t, m.Outcome == spc.Matched, len(report.Labels) > 0)
		for key, value := range report.Labels {
			require.Empty(t, validation.IsValidLabelValue(*value), key)
		}
	})
}
