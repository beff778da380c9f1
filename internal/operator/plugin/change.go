package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// fieldOwner is the name of the plugin in managedFields.
const fieldOwner = client.FieldOwner(readiness.PluginFieldManager)

// A plannedChange is what a command is about to do.
type plannedChange struct {
	// effects describes what will happen, and what follows from it. An item may have several lines.
	effects []string
	// commands do the same with kubectl alone.
	commands []string
	// rights are what the user needs.
	rights []authorizationv1.ResourceAttributes
	// apply makes the change. It is nil if there is nothing to change: the effects describe what is.
	apply func(context.Context) error
}

// addChangeFlags declares the flags of every command that changes something.
func (s *session) addChangeFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.BoolVarP(&s.yes, "yes", "y", false, "do not ask before the change")
	flags.BoolVar(&s.dryRun, "dry-run", false, "print the kubectl commands that make the change, and change nothing")
}

// carryOut shows the change, asks for it, and makes it. With --dry-run it prints a script instead:
// the effects as comments, and the commands.
func (s *session) carryOut(ctx context.Context, change plannedChange) error {
	err := s.requireRights(ctx, change.rights)
	if s.dryRun {
		if err != nil { // The script is for another user, too.
			change.effects = append(change.effects, err.Error())
		}
		s.printScript(change.effects, change.commands)
		return nil
	}
	if err != nil {
		return err
	}
	for _, effect := range change.effects {
		fmt.Fprintln(s.Out, effect)
	}
	if change.apply == nil {
		return nil
	}
	if !s.yes {
		if err := s.confirm(ctx); err != nil {
			return err
		}
	}
	return change.apply(ctx)
}

// printScript prints the effects as comments of a shell, and the commands.
func (s *session) printScript(effects, commands []string) {
	for _, effect := range effects {
		for line := range strings.SplitSeq(effect, "\n") {
			fmt.Fprintln(s.Out, strings.TrimRight("# "+line, " "))
		}
	}
	for _, command := range commands {
		fmt.Fprintln(s.Out, s.kubectl()+strings.TrimPrefix(command, "kubectl"))
	}
}

// confirm asks the user. Without a terminal there is no user to ask.
func (s *session) confirm(ctx context.Context) error {
	if !isTerminal(s.In) {
		return cli.UsageErrorf("this command asks before it changes something, and its input is not a terminal; " +
			"add --yes, or --dry-run to see what it would do")
	}
	fmt.Fprint(s.Out, "Proceed? [y/N] ")
	answers := make(chan string, 1)
	go func() { // A read from a terminal cannot be cancelled.
		line, err := bufio.NewReader(s.In).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			line = ""
		}
		answers <- line
	}()
	select {
	case answer := <-answers:
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(s.Out)
	}
	return errors.New("not confirmed; nothing was changed")
}

func isTerminal(stream any) bool {
	file, isFile := stream.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// requireRights returns an error with a line for each kind of right that the user does not have,
// and what to do.
func (s *session) requireRights(ctx context.Context, rights []authorizationv1.ResourceAttributes) error {
	var kinds []authorizationv1.ResourceAttributes
	names := map[authorizationv1.ResourceAttributes][]string{}
	for _, right := range rights {
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
		}
		if err := s.kube.Create(ctx, review); err != nil {
			return fmt.Errorf("checking the permission to %s: %w", describeRight(right), err)
		}
		if review.Status.Allowed {
			continue
		}
		kind := right
		kind.Name = ""
		if names[kind] == nil {
			kinds = append(kinds, kind)
		}
		names[kind] = append(names[kind], right.Name)
	}
	var missing []error
	for _, kind := range kinds {
		text := "you have no permission to " + describeRight(kind)
		if of := strings.Join(names[kind], ", "); of != "" {
			text += " (" + of + ")"
		}
		missing = append(missing, fmt.Errorf("%s; %s", text, adviceFor(kind)))
	}
	return errors.Join(missing...)
}

// describeRight describes a right as in `kubectl auth can-i`, without the name of the object.
func describeRight(r authorizationv1.ResourceAttributes) string {
	text := r.Verb + " " + schema.GroupResource{Group: r.Group, Resource: r.Resource}.String()
	if r.Subresource != "" {
		text += "/" + r.Subresource
	}
	if r.Namespace != "" {
		text += " -n " + r.Namespace
	}
	return text
}

func adviceFor(r authorizationv1.ResourceAttributes) string {
	if r.Verb == verbBreakGlass {
		return "an administrator grants it: kubectl create clusterrolebinding holdfast-breakglass-NAME " +
			"--clusterrole=holdfast-breakglass --user=NAME"
	}
	return "ask an administrator of the cluster for it"
}

// patchMetadata writes a label or an annotation to this object, and to no other of its name. The
// object stays as it was read.
func (s *session) patchMetadata(ctx context.Context, object client.Object, field, key string, value any) error {
	metadata := map[string]any{"uid": object.GetUID(), field: map[string]any{key: value}}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	written := object.DeepCopyObject().(client.Object)
	return s.kube.Patch(ctx, written, client.RawPatch(types.MergePatchType, body), fieldOwner)
}

func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ")
}
