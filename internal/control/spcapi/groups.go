package spcapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// GroupsSuffix ends the name of the ConfigMap with the groups. It has a key for each group, whose
// value is a [spc.NodeGroup] as JSON.
const GroupsSuffix = "-groups"

// maxGroup limits the JSON of one group, in bytes. Kubelets choose most labels of their Nodes,
// which are in the template. One of them must not fill the ConfigMap of all groups.
const maxGroup = 32 << 10

// publishGroups writes the groups, unless the pools are unknown. The templates of empty groups come
// from the ConfigMap itself, so a new leader keeps them.
func (r *Publisher) publishGroups(ctx context.Context, nodes []*corev1.Node) error {
	if r.result.PoolsErr != nil {
		return nil
	}
	return r.put(ctx, r.Name+GroupsSuffix, func(m *corev1.ConfigMap) error {
		before := decodeGroups(m)
		for _, g := range before {
			if r.result.Pools == nil && g.MaxSize != nil {
				return errors.New("the SPC API responded with 404 for the node pools, which it has had; the last groups stay")
			}
		}
		groups := spc.NodeGroups(r.index, r.result.Pools, nodes, before)
		data, size := make(map[string]string, len(groups)), 0
		for id, g := range groups {
			text, err := encodeGroup(g)
			if err != nil {
				return fmt.Errorf("encoding SPC group %s: %w", id, err)
			}
			data[id] = text
			size += len(text)
		}
		if size > maxPacked {
			return fmt.Errorf("the SPC groups have %d KiB, too much for a ConfigMap", size>>10)
		}
		m.Data = data
		return nil
	})
}

// encodeGroup returns the JSON of a group, without a template that is too large.
func encodeGroup(g spc.NodeGroup) (string, error) {
	text, err := json.Marshal(g)
	if err == nil && len(text) > maxGroup {
		g.Template, g.Debug = nil, fmt.Sprintf("no template: it has %d KiB, and at most %d are published; remove labels or "+
			"taints that all Nodes of the group have", len(text)>>10, maxGroup>>10)
		text, err = json.Marshal(g)
	}
	return string(text), err
}

// decodeGroups returns the groups of a ConfigMap, without those that another program has written.
func decodeGroups(m *corev1.ConfigMap) map[string]spc.NodeGroup {
	found := map[string]spc.NodeGroup{}
	for id, text := range m.Data {
		var g spc.NodeGroup
		if json.Unmarshal([]byte(text), &g) == nil {
			found[id] = g
		}
	}
	return found
}
