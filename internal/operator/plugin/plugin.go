// Package plugin has the commands of `kubectl holdfast`. Each command has a file of its own. The
// commands read and write objects of the API server with the rights of the user; what they say
// about etcd comes from the decisions in pkg/protect, or from the webhook itself.
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
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
	// config and kube reach the cluster that these flags select. connected sets them.
	config *rest.Config
	kube   client.Client

	// The flags that several commands have.
	yes, dryRun bool
	format      reportFormat
	zoneLabel   string
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

func (s *session) rootCommand(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-holdfast",
		Short: "See, ask and operate Holdfast, which protects the quorum of etcd",
		Long: `See, ask and operate Holdfast, which protects the quorum of etcd on the nodes of a cluster.

The commands use the kubeconfig and the rights of kubectl. Commands that change something
print what they will do and ask first; --yes skips the question, and --dry-run prints the
kubectl commands instead (uninstall: what it would do).`,
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

func (s *session) versionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of the plugin", Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(s.Out, version)
			return err
		},
	}
}

func noArguments(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cli.UsageErrorf("unexpected argument %q of %s", args[0], command.CommandPath())
	}
	return nil
}

// connected returns the RunE of a command that needs the cluster.
func (s *session) connected(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		if err := s.connect(command.Context()); err != nil {
			return err
		}
		return do(command.Context(), args)
	}
}

func (s *session) connect(ctx context.Context) (err error) {
	ctrllog.SetLogger(logr.Discard()) // Without a logger, the library complains about that.
	if s.config, err = s.flags.ToRESTConfig(); err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	s.config.QPS, s.config.Burst, s.config.WarningHandlerWithContext = 50, 100, s
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), v1alpha1.AddToScheme(types)); err != nil {
		return fmt.Errorf("registering the API types: %w", err)
	}
	requests, err := rest.HTTPClientFor(s.config)
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	// The library requests the kinds that the API server has without a context.
	transport, kinds := cmp.Or(requests.Transport, http.DefaultTransport), *requests
	kinds.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		return transport.RoundTrip(r.WithContext(ctx))
	})
	mapper, err := apiutil.NewDynamicRESTMapper(s.config, &kinds)
	if err == nil {
		s.kube, err = client.New(s.config, client.Options{Scheme: types, HTTPClient: requests, Mapper: mapper})
	}
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	return nil
}

// A roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// kubectl returns the beginning of commands for this cluster: kubectl with the flags that selected
// it and the user. A token is not repeated.
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
