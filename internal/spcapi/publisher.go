package spcapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// interval is the time between two looks at the API: its own autoscaler asks at most once a minute.
const interval = time.Minute

// Publisher asks the API once a minute and keeps the inventory's ConfigMap as the API last told. It must run in one
// process at a time.
type Publisher struct {
	Client     *Client
	ConfigMaps typedcorev1.ConfigMapInterface
	// Name is the ConfigMap's name.
	Name string
	Log  *slog.Logger
	// Interval is for tests; 0 means a minute.
	Interval time.Duration
}

// Run publishes until ctx ends, and returns its cause. While the API cannot be read the last list stays as it is.
func (p *Publisher) Run(ctx context.Context) error {
	every := p.Interval
	if every == 0 {
		every = interval
	}
	var failure string
	var last time.Time
	for {
		err := p.publish(ctx)
		wait := every + rand.N(every/10)
		switch {
		case err == nil:
			if failure != "" || last.IsZero() {
				p.Log.Info("spc inventory is up to date")
			}
			failure, last = "", time.Now()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			if status := new(StatusError); errors.As(err, &status) {
				wait = max(wait, status.RetryAfter)
			}
			if err.Error() != failure {
				p.Log.Warn("spc inventory is not refreshed, the last list stays", "err", err, "last_success", last)
			}
			failure = err.Error()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// publish reads the API once and writes the ConfigMap if it differs.
func (p *Publisher) publish(ctx context.Context) error {
	inventory, err := p.Client.Inventory(ctx)
	if err != nil {
		return err
	}
	packed, err := Encode(inventory)
	if err != nil {
		return err
	}
	have, err := p.ConfigMaps.Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, BinaryData: map[string][]byte{InventoryKey: packed}}
		_, err = p.ConfigMaps.Create(ctx, want, metav1.CreateOptions{})
	case err != nil:
	case bytes.Equal(have.BinaryData[InventoryKey], packed):
		return nil
	default:
		have.BinaryData = map[string][]byte{InventoryKey: packed}
		_, err = p.ConfigMaps.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("publishing the SPC inventory: %w", err)
	}
	return nil
}
