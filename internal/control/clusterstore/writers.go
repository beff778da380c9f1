package clusterstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// writersTimeout limits the read of the last writers. Its caller has most often used up its time.
const writersTimeout = 500 * time.Millisecond

// withWriters returns the error of a failed write with the last writers of the object, so that a
// refusal for want of a write names the programs that may be in its way.
func withWriters(
	ctx context.Context, err error, name string,
	read func(ctx context.Context, name string) (*v1alpha1.EtcdCluster, error),
) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writersTimeout)
	defer cancel()
	now, readErr := read(ctx, name)
	if readErr != nil {
		return err
	}
	if writers := lastWriters(now); writers != "" {
		return fmt.Errorf("%w (last writers of the EtcdCluster: %s)", err, writers)
	}
	return err
}

// lastWriters describes the two newest entries of managedFields.
func lastWriters(o metav1.Object) string {
	entries := slices.DeleteFunc(slices.Clone(o.GetManagedFields()),
		func(e metav1.ManagedFieldsEntry) bool { return e.Time == nil })
	slices.SortStableFunc(entries, func(a, b metav1.ManagedFieldsEntry) int { return b.Time.Compare(a.Time.Time) })
	var texts []string
	for _, e := range entries[:min(len(entries), 2)] {
		texts = append(texts, fmt.Sprintf("%s at %s", printable.Quote(e.Manager), e.Time.UTC().Format(time.RFC3339)))
	}
	return strings.Join(texts, ", ")
}
