package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// Reasons of answers that are not from the webhook.
const (
	// notFound: there is no Node of that name.
	notFound quorum.Reason = "NotFound"
	// notPermitted: the user may not read or delete Nodes.
	notPermitted quorum.Reason = "NotPermitted"
	// noAnswer: Holdfast has not answered. The API server would delete a Node without the label.
	noAnswer quorum.Reason = "NoAnswer"
	// refusedByPolicy: a ValidatingAdmissionPolicy of Holdfast refuses.
	refusedByPolicy quorum.Reason = "Policy"
	// failed: the request failed, or something other than Holdfast refused it.
	failed quorum.Reason = "Failed"
)

// dryRunDeletion asks the webhook whether a Node may be removed, by a dry run of its deletion.
func dryRunDeletion(ctx context.Context, kube client.Client, name string) report.Removal {
	node := &corev1.Node{}
	if err := kube.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return removalOf(name, nil, err)
	}
	var warnings []string
	collecting := context.WithValue(ctx, warningsKey{}, &warnings)
	err := kube.Delete(collecting, node, client.DryRunAll, client.Preconditions{UID: &node.UID})
	return removalOf(name, warnings, err)
}

// removalOf returns the answer in the result of a dry run. An API server that has not asked
// Holdfast allows as well, so only an answer with a reason of Holdfast is one.
func removalOf(node string, warnings []string, err error) report.Removal {
	r := report.Removal{Node: node, Answer: quorum.Unknown}
	if err == nil {
		r.Reason, r.Message = noAnswer, noAnswerText
		for _, w := range warnings {
			if reason, message, isReason := quorum.ParseReasonText(w); isReason && r.Reason == noAnswer {
				r.Reason, r.Message, r.Answer = reason, message, quorum.AnswerOf(reason, true)
				continue
			}
			r.Warnings = append(r.Warnings, w)
		}
		return r
	}
	r.Reason, r.Message, r.Warnings = failed, err.Error(), warnings
	var refused *apierrors.StatusError
	if !errors.As(err, &refused) {
		return r
	}
	if reason, isReason := quorum.ReasonOf(refused.ErrStatus.Details); isReason {
		r.Reason, r.Answer = reason, quorum.AnswerOf(reason, false)
		_, r.Message, _ = strings.Cut(r.Message, "denied the request: ")
		return r
	}
	switch {
	case isAboutNode(refused, node) && apierrors.IsNotFound(err):
		r.Reason = notFound
		r.Message = fmt.Sprintf("there is no node %s; check the name, or use --ignore-not-found if it may be gone already",
			node)
	case apierrors.IsForbidden(err) && strings.Contains(r.Message, "ValidatingAdmissionPolicy 'holdfast-"):
		r.Reason, r.Answer = refusedByPolicy, quorum.No
	case strings.Contains(r.Message, "denied the request"), strings.Contains(r.Message, "ValidatingAdmissionPolicy '"):
		// A webhook or a policy of others also answers with 403.
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		r.Reason = notPermitted
	case strings.Contains(r.Message, "failed calling webhook") && strings.Contains(r.Message, ".holdfast.dev"):
		r.Reason = noAnswer // A node with the label.
	}
	return r
}

// isAboutNode reports whether an API server has answered about this Node. A proxy that reaches none
// may answer every request in the same way.
func isAboutNode(refused *apierrors.StatusError, node string) bool {
	about := refused.ErrStatus.Details
	return about != nil && about.Kind == "nodes" && about.Name == node && !apierrors.IsUnexpectedServerError(refused)
}

const noAnswerText = "the API server would delete the node, but Holdfast has not answered; " +
	"it is not installed, no replica of its webhook could be called, or it is older than this plugin. " +
	"Check: kubectl get validatingwebhookconfigurations holdfast; kubectl -n holdfast-system get pods"

// warningsKey is the key of a *[]string in the context of a request that collects its warnings.
type warningsKey struct{}

// HandleWarningHeaderWithContext collects a warning, or prints it if its request does not collect.
// It makes the session a rest.WarningHandlerWithContext, which client-go calls before the request
// returns.
func (s *session) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	collected, isCollecting := ctx.Value(warningsKey{}).(*[]string)
	switch {
	case code != 299 || text == "": // all warnings of API servers have it (RFC 7234, section 5.5)
	case isCollecting:
		*collected = append(*collected, text)
	default:
		fmt.Fprintf(s.ErrOut, "Warning: %s\n", text)
	}
}
