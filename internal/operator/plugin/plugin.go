// Package plugin has the commands of `kubectl holdfast`. Each command has a file of its own. The
// commands read and write objects of the API server with the rights of the user; what they say
// about etcd comes from the decisions in pkg/protect, or from the webhook itself.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
)

// Streams are the streams of one command line.
type Streams = genericiooptions.IOStreams

// A session is what the commands of one command line share.
type session struct {
	// The output streams escape what they print.
	Streams
	// terminal is the output without that, for the control sequences of the plugin itself.
	terminal io.Writer
	flags    *genericclioptions.ConfigFlags
	// root is the command with the flags of kubectl.
	root *cobra.Command
}

// Execute runs one command line and returns its exit code: 0, cli.ExitFailure, cli.ExitUsage, or
// the code that the command documents. Errors are printed to streams.ErrOut.
func Execute(ctx context.Context, streams Streams, version string, args []string) int {
	terminal := streams.Out
	streams.Out, streams.ErrOut = cli.EscapingWriter{Out: streams.Out}, cli.EscapingWriter{Out: streams.ErrOut}
	s := &session{Streams: streams, terminal: terminal, flags: genericclioptions.NewConfigFlags(true)}
	root := s.rootCommand(version) //nolint:contextcheck // cobra gives the commands their context
	root.SetArgs(args)
	executed, err := root.ExecuteContextC(ctx)
	return cli.ReportError(streams.ErrOut, "kubectl holdfast", executed.CommandPath()+" --help", err)
}

// rootCommand returns the command with all its subcommands.
func (s *session) rootCommand(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-holdfast",
		Short: "See, ask and operate Holdfast, which protects the quorum of etcd",
		Long: `See, ask and operate Holdfast, which protects the quorum of etcd on the nodes of a cluster.

The commands use the kubeconfig and the rights of kubectl. Commands that change something
print what they will do and ask first; --yes skips the question, and --dry-run prints the
kubectl commands instead.`,
		Version: version,
		Args:    noArguments, RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
		SilenceUsage: true, SilenceErrors: true,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl holdfast"},
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.ErrOut)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.UsageErrorf("%v", err) })
	s.flags.AddFlags(root.PersistentFlags())
	s.root = root
	root.AddCommand(s.statusCommand(), s.whyCommand(), s.canRemoveCommand(), s.whatIfCommand(), s.planCommand(),
		s.versionCommand(version))
	root.AddCommand(s.breakGlassCommand(), s.settleCommand(), s.releaseCommand(), s.holdCommand(),
		s.uninstallCommand())
	return root
}

// versionCommand returns the command that prints the version of the plugin.
func (s *session) versionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of the plugin", Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(s.Out, version)
			return err
		},
	}
}

// noArguments returns a usage error if the command line has arguments.
func noArguments(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cli.UsageErrorf("unexpected argument %q of %s", args[0], command.CommandPath())
	}
	return nil
}

// nodeArguments returns a usage error if the command line names no Node.
func nodeArguments(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.UsageErrorf("name at least one node")
	}
	return nil
}

// errNotConfirmed ends a command that the user did not confirm.
var errNotConfirmed = errors.New("not confirmed; nothing was changed")

// client returns a client for the cluster that the flags select.
func (s *session) client() (client.WithWatch, error) {
	ctrllog.SetLogger(logr.Discard()) // Without a logger, the library complains about that.
	config, err := s.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS, config.Burst, config.WarningHandlerWithContext = 50, 100, s
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), v1alpha1.AddToScheme(types)); err != nil {
		return nil, fmt.Errorf("registering the API types: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: types})
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	return c, nil
}

// kubectl returns the beginning of the commands in a script: kubectl with the flags that selected
// the cluster and the user. A token is not repeated.
func (s *session) kubectl() string {
	command := "kubectl"
	for _, name := range []string{
		"kubeconfig", "context", "cluster", "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority",
		"user", "client-certificate", "client-key", "as", "as-uid", "as-group", "as-user-extra",
	} {
		f := s.root.PersistentFlags().Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		values := []string{f.Value.String()}
		if list, isList := f.Value.(interface{ GetSlice() []string }); isList {
			values = list.GetSlice()
		}
		for _, value := range values {
			command += " --" + name + "=" + cli.Quoted(value)
		}
	}
	return command
}

// oneArgument returns the check of a command that takes one name.
func oneArgument(what string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return cli.UsageErrorf("name a %s: %s", what, command.UseLine())
		case 1:
			return nil
		}
		return cli.UsageErrorf("unexpected argument %q; %s takes one %s", args[1], command.CommandPath(), what)
	}
}
