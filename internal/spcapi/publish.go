package spcapi

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// StatusSuffix ends the name of the ConfigMap that tells people how the inventory stands.
const StatusSuffix = "-status"

// maxPacked is the most that a ConfigMap may hold, less some for its metadata (core validation: 1 MiB of data).
const maxPacked = 1<<20 - 16<<10

// resume takes up what an earlier leader left, and returns how long the API is still to be left alone.
func (r *run) resume(ctx context.Context) time.Duration {
	if have, err := r.ConfigMaps.Get(ctx, r.Name, metav1.GetOptions{}); err == nil {
		if inventory, err := Decode(have); err == nil {
			r.published, r.index = inventory, spc.NewIndex(inventory)
		}
	}
	have, err := r.ConfigMaps.Get(ctx, r.Name+StatusSuffix, metav1.GetOptions{})
	if err != nil {
		return 0
	}
	if at, err := time.Parse(time.RFC3339, have.Data[statusSucceeded]); err == nil {
		r.success = at
	}
	attempted, err := time.Parse(time.RFC3339, have.Data[statusAttempted])
	if err != nil {
		return 0
	}
	left := r.every - time.Since(attempted)
	if left > r.every { // of the future: somebody's clock is wrong
		return 0
	}
	return left
}

// publish writes the ConfigMap if it differs.
func (r *run) publish(ctx context.Context, inventory *spc.Inventory) error {
	packed, err := Encode(inventory)
	if err != nil {
		return err
	}
	r.Metrics.packed(len(packed))
	if len(packed) > maxPacked {
		return fmt.Errorf("the list of %d SPC machines is %d KiB even when compressed, too much for a ConfigMap; the last one stays",
			len(inventory.Records), len(packed)>>10)
	}
	have, err := r.ConfigMaps.Get(ctx, r.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: r.Name}, BinaryData: map[string][]byte{InventoryKey: packed}}
		_, err = r.ConfigMaps.Create(ctx, want, metav1.CreateOptions{})
	case err != nil:
	case bytes.Equal(have.BinaryData[InventoryKey], packed):
		return nil
	default:
		have.Data, have.BinaryData = nil, map[string][]byte{InventoryKey: packed}
		_, err = r.ConfigMaps.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("publishing the SPC inventory: %w", err)
	}
	return nil
}

// writeStatus writes the ConfigMap for people. It is not the agents' and wakes none of them.
func (r *run) writeStatus(ctx context.Context, s status) error {
	name, data := r.Name+StatusSuffix, s.data()
	have, err := r.ConfigMaps.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
		_, err = r.ConfigMaps.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !maps.Equal(have.Data, data):
		have.Data = data
		_, err = r.ConfigMaps.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}
