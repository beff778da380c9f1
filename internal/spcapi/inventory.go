package spcapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	// InventoryKey is the key of the inventory in the ConfigMap's binary data: JSON, compressed with gzip.
	InventoryKey = "inventory.json.gz"
	// maxInventory bounds what is decompressed.
	maxInventory = 64 << 20
)

// Encode compresses an inventory. Equal inventories give equal bytes.
func Encode(i *spc.Inventory) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("compressing the SPC inventory: %w", err)
	}
	if err := errors.Join(json.NewEncoder(w).Encode(i), w.Close()); err != nil {
		return nil, fmt.Errorf("compressing the SPC inventory: %w", err)
	}
	return packed.Bytes(), nil
}

// Decode reads the inventory out of the ConfigMap that a Publisher wrote.
func Decode(m *corev1.ConfigMap) (*spc.Inventory, error) {
	packed, there := m.BinaryData[InventoryKey]
	if !there {
		return nil, fmt.Errorf("the ConfigMap %s/%s has no key %s", m.Namespace, m.Name, InventoryKey)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("decompressing the SPC inventory: %w", err)
	}
	var inventory spc.Inventory
	if err := json.NewDecoder(io.LimitReader(r, maxInventory)).Decode(&inventory); err != nil {
		return nil, fmt.Errorf("reading the SPC inventory: %w", err)
	}
	return &inventory, nil
}
