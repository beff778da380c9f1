package agent

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
)

// remote is an API server of one Node that goes away and comes back, in a bubble of its own time. A real one that is stopped,
// killed and started again is in serverIsAway and in cmd/agent; what takes a minute there takes none here.
type remote struct {
	mu      sync.Mutex
	node    *corev1.Node
	streams []chan watch.Event
	// mute is a watch that lives and tells nothing.
	mute bool
	// away is what a request meets, nil if it is answered.
	away func(context.Context) error
	// wrote is called after each write, with the lock held, and returns what becomes of the answer.
	wrote func(after *corev1.Node) error
	// answered and failed are how many requests were; told are the reasons of events.
	answered, failed int
	told             []string
}

// refuses and hangs are the ways in which a server is away. A request that hangs does so until its deadline, or until the
// connection is found dead (HTTP/2 pings, 30 s and 15 s), also if the server has long come back.
func refuses(context.Context) error { return syscall.ECONNREFUSED }

func hangs(ctx context.Context) error {
	if err := pause(ctx, 45*time.Second); err != nil {
		return err
	}
	return errors.New("http2: client connection lost")
}

// goes takes the server away: its watches end at once if it refuses, and tell nothing until they are found dead if it hangs.
// The caller holds the lock.
func (r *remote) goes(away func(context.Context) error, dead bool) {
	r.away = away
	streams := r.streams
	r.streams = nil
	end := func() {
		for _, s := range streams {
			close(s)
		}
	}
	if dead {
		time.AfterFunc(45*time.Second, end)
		return
	}
	end()
}

func (r *remote) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *remote) request(ctx context.Context) error {
	r.mu.Lock()
	away := r.away
	r.mu.Unlock()
	var err error
	if away != nil {
		err = away(ctx)
	}
	r.locked(func() {
		if err != nil {
			r.failed++
		} else {
			r.answered++
		}
	})
	return err
}

func (r *remote) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Node, error) {
	if err := r.request(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node.DeepCopy(), nil
}

func (r *remote) List(ctx context.Context, _ metav1.ListOptions) (*corev1.NodeList, error) {
	if err := r.request(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: r.node.ResourceVersion}, Items: []corev1.Node{*r.node.DeepCopy()}}, nil
}

// stream is one watch.
type stream struct{ events chan watch.Event }

func (s stream) Stop()                          {}
func (s stream) ResultChan() <-chan watch.Event { return s.events }

func (r *remote) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := r.request(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	events := make(chan watch.Event, 64)
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		events <- watch.Event{Type: watch.Added, Object: r.node.DeepCopy()}
		events <- watch.Event{Type: watch.Bookmark, Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: r.node.ResourceVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}}
	}
	r.streams = append(r.streams, events)
	return stream{events}, nil
}

func (r *remote) Patch(ctx context.Context, name string, kind types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	if err := r.request(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var guard struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(body, &guard); err != nil {
		return nil, err
	}
	if v := guard.Metadata.ResourceVersion; v != "" && v != r.node.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("it has moved"))
	}
	before, err := json.Marshal(r.node)
	if err != nil {
		return nil, err
	}
	merge := jsonpatch.MergePatch
	if kind == types.StrategicMergePatchType {
		merge = func(before, body []byte) ([]byte, error) {
			return strategicpatch.StrategicMergePatch(before, body, corev1.Node{})
		}
	}
	after, err := merge(before, body)
	if err != nil {
		return nil, err
	}
	made := &corev1.Node{}
	if err := json.Unmarshal(after, made); err != nil {
		return nil, err
	}
	r.becomes(made)
	if r.wrote != nil {
		if err := r.wrote(made); err != nil {
			return nil, err
		}
	}
	return made.DeepCopy(), nil
}

// becomes is a write to the Node, by whom ever. The caller holds the lock.
func (r *remote) becomes(n *corev1.Node) {
	version, err := strconv.Atoi(r.node.ResourceVersion)
	if err != nil {
		panic(err)
	}
	n.ResourceVersion = strconv.Itoa(version + 1)
	r.node = n
	if r.mute {
		return
	}
	for _, s := range r.streams {
		s <- watch.Event{Type: watch.Modified, Object: n.DeepCopy()}
	}
}

func (r *remote) Create(ctx context.Context, event *corev1.Event, _ metav1.CreateOptions) (*corev1.Event, error) {
	if err := r.request(ctx); err != nil {
		return nil, err
	}
	r.locked(func() { r.told = append(r.told, event.Reason) })
	return event, nil
}
