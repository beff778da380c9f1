package apiaccess

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// WebhookFieldManager is the name of the webhook in managedFields.
const WebhookFieldManager = "holdfast-webhook"

// IsNewer reports whether a is a newer version of an object than b. A version that cannot be
// compared is not newer.
func IsNewer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}

// IsOtherObject reports whether a patch with a UID failed because another object has the name now.
// The API server calls that an invalid change of the UID.
func IsOtherObject(err error) bool {
	var refused *apierrors.StatusError
	if !errors.As(err, &refused) || refused.ErrStatus.Details == nil {
		return false
	}
	isUID := func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" }
	return slices.ContainsFunc(refused.ErrStatus.Details.Causes, isUID)
}
