package holdwatch

import (
	"context"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// eventually is how long anything may take that is only waited for.
	eventually = 20 * time.Second
	often      = 10 * time.Millisecond
	namespace  = "holdfast-system"
)

// site is an API server with Holdfast installed, no agent, and no webhook but the watchers of the test.
type site struct {
	*testenv.APIServer
	t *testing.T
}

// watch is a Watcher with the rights of the webhook, whose rounds and clock the test drives.
type watch struct {
	*site
	*Watcher
	elect   func()
	freeze  func()
	cache   cache.Cache
	meters  *prometheus.Registry
	ahead   time.Duration
	stories []story
	// requests is how many the watcher has made, without those of its cache.
	requests int
}

// counter is a round trip that is counted.
type counter func(*http.Request) (*http.Response, error)

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) { return c(r) }

// story is an event that was told.
type story struct{ about, reason, message string }

// watch starts a Watcher that leads and whose clock is off by so much.
func (s *site) watch(off time.Duration, change ...func(*Options)) *watch {
	s.t.Helper()
	w := s.follow(off, change...)
	w.elect()
	return w
}

// follow starts a Watcher that does not lead yet.
func (s *site) follow(off time.Duration, change ...func(*Options)) *watch {
	s.t.Helper()
	config, err := s.ServiceAccountConfig(s.t.Context(), namespace, "holdfast-webhook", "")
	require.NoError(s.t, err)
	w := &watch{site: s, meters: prometheus.NewRegistry(), ahead: off}
	counted := rest.CopyConfig(config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return counter(func(r *http.Request) (*http.Response, error) {
			w.requests++
			return next.RoundTrip(r)
		})
	})
	core, err := kubernetes.NewForConfig(counted)
	require.NoError(s.t, err)
	scheme := runtime.NewScheme()
	require.NoError(s.t, corev1.AddToScheme(scheme))
	informers, err := cache.New(config, cache.Options{Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields()})
	require.NoError(s.t, err)
	elected := make(chan struct{})
	w.cache, w.elect = informers, func() { close(elected) }
	o := Options{
		Cache: informers, Nodes: core.CoreV1().Nodes(), ConfigMaps: core.CoreV1().ConfigMaps(namespace), Elected: elected,
		Patience: readiness.Patience{Agent: 2 * time.Minute, Hold: 10 * time.Minute, Namespace: namespace},
		Tell: func(about *corev1.ObjectReference, kind, reason, message string) {
			require.Equal(s.t, corev1.EventTypeWarning, kind)
			require.NotEmpty(s.t, about.UID)
			w.stories = append(w.stories, story{about.Kind + " " + about.Name, reason, message})
		},
		Log: slog.New(slog.NewTextHandler(s.t.Output(), nil)), Registerer: w.meters,
		Now: func() time.Time { return time.Now().Add(w.ahead) },
	}
	for _, c := range change {
		c(&o)
	}
	w.Watcher, err = New(s.t.Context(), o)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	var g errgroup.Group
	g.Go(func() error { return informers.Start(ctx) })
	w.freeze = func() {
		cancel()
		require.NoError(s.t, g.Wait())
	}
	s.t.Cleanup(w.freeze)
	require.True(s.t, informers.WaitForCacheSync(ctx))
	return w
}

func releasing(o *Options) { o.Patience.Release = true }

// rounds has the watcher work a few rounds, after its cache has caught up.
func (w *watch) rounds(n int) {
	w.t.Helper()
	for range n {
		w.catchUp()
		require.NoError(w.t, w.round(w.t.Context()))
	}
}

// pass moves the watcher's clock on, in steps of a round.
func (w *watch) pass(d time.Duration) {
	w.t.Helper()
	w.rounds(1)
	w.ahead += d
	w.rounds(2)
}

// catchUp waits until the cache holds what the API server does.
func (w *watch) catchUp() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		live, err := w.Client().CoreV1().Nodes().List(w.t.Context(), metav1.ListOptions{})
		require.NoError(w.t, err)
		cached := &corev1.NodeList{}
		require.NoError(w.t, w.cache.List(w.t.Context(), cached))
		versions := map[string]string{}
		for _, n := range cached.Items {
			versions[n.Name] = n.ResourceVersion
		}
		for _, n := range live.Items {
			if versions[n.Name] != n.ResourceVersion {
				return false
			}
		}
		return len(cached.Items) == len(live.Items)
	}, eventually, often)
}

// told returns the messages of the events about an object with this reason.
func (w *watch) told(about, reason string) (messages []string) {
	for _, s := range w.stories {
		if s.about == about && s.reason == reason {
			messages = append(messages, s.message)
		}
	}
	return messages
}

// metric returns a number of the watcher's, of a state or without one, in whole units.
func (w *watch) metric(name, state string) int {
	w.t.Helper()
	families, err := w.meters.Gather()
	require.NoError(w.t, err)
	for _, f := range families {
		if f.GetName() != "holdfast_webhook_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == state {
				return value(m)
			}
		}
	}
	require.Fail(w.t, "there is no such metric", "%s %s", name, state)
	return 0
}

func value(m *dto.Metric) int { return int(m.GetGauge().GetValue() + m.GetCounter().GetValue()) }

// paste runs a command line as an administrator would who has pasted it into a shell.
func (s *site) paste(line string) {
	s.t.Helper()
	shell := exec.CommandContext(s.t.Context(), "/bin/sh", "-c", line)
	kubectl, err := testenv.Binary("kubectl")
	require.NoError(s.t, err)
	shell.Env = []string{"PATH=" + filepath.Dir(kubectl), "KUBECONFIG=" + s.Kubeconfig(), "HOME=" + s.t.TempDir()}
	out, err := shell.CombinedOutput()
	require.NoError(s.t, err, "%s\n%s", line, out)
}

// quoted returns the command lines that stand in a message.
func quoted(message string) (lines []string) {
	for i, part := range strings.Split(message, "`") {
		if i%2 == 1 {
			lines = append(lines, part)
		}
	}
	return lines
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func record(t *testing.T, node *corev1.Node) readiness.Record {
	t.Helper()
	r, err := readiness.ParseRecord(node.Annotations[readiness.HoldAnnotation])
	require.NoError(t, err)
	return r
}

// parameter returns the policy's parameter, nil if there is none.
func (s *site) parameter() *corev1.ConfigMap {
	s.t.Helper()
	found, err := s.Client().CoreV1().ConfigMaps(namespace).Get(s.t.Context(), Parameter, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(s.t, err)
	return found
}
