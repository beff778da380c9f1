package apiaccess_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
)

// pagedNodes answers requests for a list as the API server does.
type pagedNodes struct {
	count int
	// before answers a request before the list does, if it returns an error. Requests count from 1.
	before   func(ctx context.Context, request int) error
	requests []metav1.ListOptions
	// sent has the first object of each page. A page is in memory as long as any of its objects.
	sent []weak.Pointer[corev1.Node]
	// held is the number of pages that were in memory when a further one was requested.
	held int
}

func (p *pagedNodes) list(ctx context.Context, o metav1.ListOptions) (kruntime.Object, error) {
	p.requests = append(p.requests, o)
	if p.before != nil {
		if err := p.before(ctx, len(p.requests)); err != nil {
			return nil, err
		}
	}
	runtime.GC()
	for _, page := range p.sent {
		if page.Value() != nil {
			p.held++
		}
	}
	first, _ := strconv.Atoi(o.Continue)
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for i := first; i < p.count && i < first+int(o.Limit); i++ {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
		n.Status.Images = make([]corev1.ContainerImage, 1)
		list.Items = append(list.Items, n)
	}
	if next := first + int(o.Limit); next < p.count {
		list.Continue = strconv.Itoa(next)
	}
	if len(list.Items) > 0 {
		p.sent = append(p.sent, weak.Make(&list.Items[0]))
	}
	return list, nil
}

// keepEven keeps every second Node, as it is.
func keepEven(object kruntime.Object) (*corev1.Node, bool, error) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return nil, false, fmt.Errorf("a %T", object)
	}
	number, err := strconv.Atoi(n.Name[1:])
	return n, number%2 == 0, err
}

func TestListPages(t *testing.T) {
	for name, c := range map[string]struct {
		count    int
		before   func(request int) error
		requests int
		err      string
	}{
		"none":      {count: 0, requests: 1},
		"one page":  {count: 100, requests: 1},
		"two pages": {count: 101, requests: 2},
		"last page fails": {count: 240, requests: 3, err: "timeout", before: func(request int) error {
			return map[int]error{3: errors.New("timeout")}[request]
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pagedNodes{count: c.count}
			if c.before != nil {
				p.before = func(_ context.Context, request int) error { return c.before(request) }
			}
			kept, version, err := apiaccess.ListPages(t.Context(), p.list, keepEven)
			require.Len(t, p.requests, c.requests)
			for _, o := range p.requests {
				require.Equal(t, metav1.ListOptions{Limit: 100, Continue: o.Continue}, o)
			}
			require.Zero(t, p.held, "pages that stay in memory")
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Empty(t, kept, "an error is never a shorter list")
				return
			}
			require.NoError(t, err)
			require.Equal(t, "7", version)
			require.Len(t, kept, (c.count+1)/2)
			for i, n := range kept {
				require.Equal(t, fmt.Sprint("n", 2*i), n.Name)
			}
		})
	}
	t.Run("an object that is not expected", func(t *testing.T) {
		pods := func(context.Context, metav1.ListOptions) (kruntime.Object, error) {
			return &corev1.PodList{Items: make([]corev1.Pod, 1)}, nil
		}
		kept, _, err := apiaccess.ListPages(t.Context(), pods, keepEven)
		require.EqualError(t, err, "a *v1.Pod")
		require.Empty(t, kept)
	})
	t.Run("the same page again", func(t *testing.T) {
		again := func(context.Context, metav1.ListOptions) (kruntime.Object, error) {
			return &corev1.NodeList{ListMeta: metav1.ListMeta{Continue: "next"}}, nil
		}
		_, _, err := apiaccess.ListPages(t.Context(), again, keepEven)
		require.EqualError(t, err, "the API server answers with the same page again")
	})
	t.Run("a page that never comes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p := &pagedNodes{count: 240, before: func(ctx context.Context, request int) error {
				if request == 1 {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}}
			_, _, err := apiaccess.ListPages(ctx, p.list, keepEven)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Len(t, p.requests, 2)
		})
	})
}
