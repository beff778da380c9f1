package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// holdsMember gives the host a member that answers.
func holdsMember(f *bubbleFixture) {
	f.servers.set([]evidence.FoundServer{{Server: foundMember(812).Server}})
}

// inService returns a Node whose hold has ended in this boot.
func inService(boot string) *corev1.Node {
	record := readiness.Record{State: readiness.Released, BootID: boot, Reason: readiness.NetworkReady}
	n := bornHeld(testNode)
	n.Annotations[readiness.HoldAnnotation] = record.Format()
	n.Spec.Unschedulable, n.Status.Conditions = false, nil
	return n
}

// TestServerErrors opens the network of a held node while the API server refuses writes.
func TestServerErrors(t *testing.T) {
	for name, c := range map[string]struct {
		code, times int
		// atLeast is the sum of the delays: 50 ms, 100 ms, 200 ms, …
		atLeast time.Duration
	}{
		// Five attempts without a delay.
		"conflict":          {http.StatusConflict, 12, 150 * time.Millisecond},
		"too many requests": {http.StatusTooManyRequests, 5, 1550 * time.Millisecond},
		// Two in each pass.
		"internal error": {http.StatusInternalServerError, 10, 1550 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
				tries := 0
				f.api.beforeWrite = func(string) error {
					if tries++; tries > c.times {
						return nil
					}
					f.agent.onHostChange() // a busy host must not add requests to an ill server
					return refusal(c.code)
				}
				f.host(openNetwork())
				require.Greater(f.t, f.within(slowTick, isFree), c.atLeast)
				elapse(f.t, time.Second)
				require.Greater(f.t, tries, c.times)
				require.Equal(f.t, 1, strings.Count(f.logs(), "failed to reconcile the Node; retrying"), f.logs())
				require.Contains(f.t, f.logs(), "the Node is reconciled again")
			})
		})
	}

	t.Run("list fails", func(t *testing.T) {
		inBubble(t, bornHeld(testNode), func(f *bubbleFixture) {
			tries := 0
			f.facts.set(openNetwork())
			f.api.away = func(context.Context) error {
				if tries++; tries > 6 {
					return nil
				}
				return refusal(http.StatusInternalServerError)
			}
		}, func(f *bubbleFixture) {
			f.within(2*slowTick, isFree)
			require.Equal(f.t, 1, strings.Count(f.logs(), "failed to read from the API server"), f.logs())
			require.Equal(f.t, 1, strings.Count(f.logs(), "reading from the API server works again"), f.logs())
		})
	})

	t.Run("events hang", func(t *testing.T) {
		whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
			f.api.areEventsHanging = true
			f.host(openNetwork())
			f.within(time.Second, isFree)
		})
	})
}

// TestOtherWriters has writes of others at the moment of the release.
func TestOtherWriters(t *testing.T) {
	t.Run("frequent", func(t *testing.T) {
		whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
			writes := 0
			f.api.beforeWrite = func(string) error {
				if writes++; writes < maxSteps {
					f.api.edit(func(n *corev1.Node) { n.Annotations["example.org/other"] = fmt.Sprint(writes) })
				}
				return nil
			}
			f.host(openNetwork())
			f.within(50*time.Millisecond, isFree)
			require.Equal(f.t, fmt.Sprint(maxSteps-1), f.node().Annotations["example.org/other"])
			require.Equal(f.t, maxSteps-1, f.api.conflicts)
		})
	})

	// A controller that wants another value reverts each write as soon as it sees it.
	t.Run("reverted", func(t *testing.T) {
		inBubble(t, inService(testBoot), holdsMember, func(f *bubbleFixture) {
			f.within(slowTick, observation.IsLabelled)
			writes := 0
			f.api.locked(func() {
				f.api.afterWrite = func(*corev1.Node) error {
					writes++
					time.AfterFunc(10*time.Millisecond, func() {
						f.api.edit(func(n *corev1.Node) { delete(n.Labels, observation.EtcdMemberLabel) })
					})
					return nil
				}
			})
			f.api.edit(func(n *corev1.Node) { delete(n.Labels, observation.EtcdMemberLabel) })
			elapse(f.t, time.Minute)
			require.Less(f.t, writes, 2*60, "writes in a minute")
			require.Greater(f.t, writes, 50, "the label is restored again and again")
			goingDown := openNetwork()
			goingDown.GoingDown = true
			f.host(goingDown)
			f.within(2*time.Second, func(n *corev1.Node) bool { return n.Spec.Unschedulable })
			f.api.locked(func() { f.api.afterWrite = nil })
		})
	})

	// The facts from before a conflict must not release the node.
	t.Run("network lost", func(t *testing.T) {
		whileHeld(t, readiness.Policy{}, func(f *bubbleFixture) {
			f.api.beforeWrite = func(string) error {
				f.api.beforeWrite = nil
				f.facts.set(closedNetwork()) // without an event
				return refusal(http.StatusConflict)
			}
			f.host(openNetwork())
			elapse(f.t, time.Minute)
			require.True(f.t, isHeld(f.node()))
			require.True(f.t, f.node().Spec.Unschedulable)
		})
	})

	// F74: the webhook records a drain on the held Node. The node stays held until its machine has
	// restarted.
	t.Run("F74 drain of a held node", func(t *testing.T) {
		inBubble(t, bornHeld(testNode), holdsMember, func(f *bubbleFixture) {
			f.within(slowTick, isHeld)
			f.api.beforeWrite = func(string) error {
				f.api.beforeWrite = nil
				f.api.edit(func(n *corev1.Node) {
					value, err := readiness.WithDrain(n, time.Now())
					require.NoError(f.t, err)
					n.Annotations[readiness.HoldAnnotation] = value
				})
				return nil
			}
			f.host(openNetwork())
			f.within(time.Second, hasReason(readiness.WaitingForOthers))
			elapse(f.t, time.Minute)
			require.True(f.t, f.node().Spec.Unschedulable)

			facts := openNetwork()
			facts.BootID = "the next boot"
			f.host(facts)
			f.within(time.Second, isFree)
		})
	})
}

// TestShutdown checks that the agent allows a shutdown once, and only after it has cordoned the
// Node and announced the shutdown of its etcd.
func TestShutdown(t *testing.T) {
	goingDown, staysUp := openNetwork(), openNetwork()
	goingDown.GoingDown, staysUp.StaysUp, staysUp.SawShutdown = true, true, true
	isAnnounced := func(n *corev1.Node) bool { return departure.Table{}.Of(n).Key == departure.ShutdownAnnotation }
	prepare := func(f *bubbleFixture) { holdsMember(f); f.facts.set(openNetwork()) }
	inBubble(t, inService(testBoot), prepare, func(f *bubbleFixture) {
		f.within(slowTick, observation.IsLabelled)
		require.Empty(f.t, f.shutdowns)
		tries := 0
		f.api.beforeWrite = func(string) error {
			if tries++; tries < 3 {
				return refusal(http.StatusInternalServerError)
			}
			return nil
		}
		f.host(goingDown)
		f.within(time.Second, hasReason(readiness.GoingDown))
		elapse(f.t, time.Minute)
		require.Len(f.t, f.shutdowns, 1, "each shutdown is allowed once")
		require.True(f.t, f.shutdowns[0].Spec.Unschedulable)
		require.True(f.t, isAnnounced(f.shutdowns[0]))
		require.NotEqual(f.t, corev1.ConditionTrue, status(f.node(), corev1.NodeNetworkUnavailable))

		f.host(staysUp)
		f.within(time.Second, func(n *corev1.Node) bool { return isReleased(n) && !isAnnounced(n) })
		f.api.edit(func(n *corev1.Node) { n.Spec.Unschedulable = true }) // by kured
		f.host(goingDown)
		elapse(f.t, time.Second)
		require.Len(f.t, f.shutdowns, 2, "the next shutdown is delayed too")
		require.True(f.t, isAnnounced(f.shutdowns[1]))
	})
}

// TestRefusals lets a policy of the cluster refuse a part of the write.
func TestRefusals(t *testing.T) {
	for _, code := range []int{
		http.StatusBadRequest, http.StatusForbidden, http.StatusUnprocessableEntity,
		http.StatusInternalServerError, http.StatusTeapot,
	} {
		for refused, wanted := range map[string]func(*corev1.Node) bool{
			observation.EtcdMemberLabel: isReleased, readiness.HoldAnnotation: observation.IsLabelled,
			openstack.Annotation: observation.IsLabelled,
		} {
			t.Run(fmt.Sprint(refused, " ", code), func(t *testing.T) {
				node := bornHeld(testNode)
				node.Spec.ProviderID = "openstack:///2b3b1b80-8b5c-4bd3-9a2f-1d4a0a3f6a11"
				inBubble(t, node, func(f *bubbleFixture) {
					holdsMember(f)
					f.facts.set(openNetwork())
					f.api.beforeWrite = func(body string) error {
						if strings.Contains(body, refused) {
							return refusal(code)
						}
						return nil
					}
				}, func(f *bubbleFixture) {
					f.within(slowTick, wanted)
					elapse(f.t, time.Minute)
					require.Contains(f.t, f.logs(), "failed to reconcile the Node")
					require.NotContains(f.t, f.logs(), "the Node is reconciled again", "a part is missing")
				})
			})
		}
	}
}

// TestShutdownDespiteRefusals: a part that is always refused must not delay the writes for a
// shutdown of the host, which logind delays for five seconds.
func TestShutdownDespiteRefusals(t *testing.T) {
	node := inService(testBoot)
	node.Spec.ProviderID = "openstack:///2b3b1b80-8b5c-4bd3-9a2f-1d4a0a3f6a11"
	inBubble(t, node, func(f *bubbleFixture) {
		holdsMember(f)
		f.facts.set(openNetwork())
		f.refuseMachine()
	}, func(f *bubbleFixture) {
		elapse(f.t, time.Minute)
		answered := f.api.answered
		for range 60 * 50 { // a busy host
			f.agent.onHostChange()
			elapse(f.t, 20*time.Millisecond)
		}
		require.Less(f.t, f.api.answered-answered, 3*60, "requests in a minute")
		goingDown := openNetwork()
		goingDown.GoingDown = true
		f.host(goingDown)
		f.within(2*time.Second, func(n *corev1.Node) bool {
			return n.Spec.Unschedulable && n.Annotations[departure.ShutdownAnnotation] != ""
		})
	})
}

// TestNextAgent starts an agent on the node of a member that another agent has reported, as every
// update does.
func TestNextAgent(t *testing.T) {
	marked := bornHeld(testNode)
	inBubble(t, marked, holdsMember, func(f *bubbleFixture) {
		f.within(slowTick, observation.IsLabelled)
		elapse(f.t, time.Minute)
		marked = f.node()
	})
	t.Run("writes nothing", func(t *testing.T) {
		inBubble(t, marked.DeepCopy(), holdsMember, func(f *bubbleFixture) {
			elapse(f.t, time.Minute)
			require.Equal(f.t, "5", f.node().ResourceVersion)
		})
	})
	t.Run("waits for the EtcdClusters", func(t *testing.T) {
		inBubble(t, marked.DeepCopy(), nil, func(f *bubbleFixture) {
			elapse(f.t, time.Minute)
			require.False(f.t, observation.IsLabelled(f.node()))
			require.Equal(f.t, 1, strings.Count(f.logs(), "decided about etcd membership"))
		})
	})
	for name, list := range map[string]func(*bubbleFixture) *listFunc{
		"EtcdClusters unreadable":     func(f *bubbleFixture) *listFunc { return &f.listClusters },
		"EtcdObservations unreadable": func(f *bubbleFixture) *listFunc { return &f.listObservations },
	} {
		t.Run(name, func(t *testing.T) { // what cannot be read ends no protection
			inBubble(t, marked.DeepCopy(), func(f *bubbleFixture) {
				*list(f) = func(context.Context, metav1.ListOptions) (runtime.Object, error) {
					return nil, refusal(http.StatusForbidden)
				}
			}, func(f *bubbleFixture) {
				f.within(2*startGrace+slowTick, func(n *corev1.Node) bool {
					return status(n, observation.EtcdMemberCondition) == corev1.ConditionUnknown
				})
				elapse(f.t, time.Minute)
				require.True(f.t, observation.IsLabelled(f.node()))
			})
		})
	}
}

// TestKillDuringHold runs a hold from its beginning to its end, and kills the agent at its first
// write, before or after the API server has received it. It repeats this with the second write and
// so on, until the agent makes no further write. Each time another agent must reach the same end.
func TestKillDuringHold(t *testing.T) {
	for name, node := range map[string]*corev1.Node{
		"born held": bornHeld(testNode), "held after a reboot": inService("the last boot"),
	} {
		for _, isReceived := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", received: ", isReceived), func(t *testing.T) {
				write := 0
				for isReached := true; isReached; {
					write++
					isReached = killAtWrite(t, node.DeepCopy(), write, isReceived)
				}
				require.Greater(t, write, 3, "a hold needs at least: begin or explain, end, conditions")
			})
		}
	}
}

// killAtWrite reports whether the agent made the write at which it is to be killed.
func killAtWrite(t *testing.T, node *corev1.Node, write int, isReceived bool) bool {
	var left *corev1.Node // what the killed agent left
	isOpen := false
	inBubble(t, node, func(f *bubbleFixture) {
		kill := func() error {
			if write--; write != 0 {
				return nil
			}
			left = f.api.node.DeepCopy()
			f.api.leave(refuses, false)
			return syscall.ECONNREFUSED
		}
		if isReceived {
			f.api.afterWrite = func(*corev1.Node) error { return kill() }
		} else {
			f.api.beforeWrite = func(string) (err error) { f.api.locked(func() { err = kill() }); return err }
		}
	}, func(f *bubbleFixture) {
		elapse(f.t, slowTick)
		if left == nil {
			isOpen = true
			f.host(openNetwork())
			elapse(f.t, slowTick)
		}
	})
	if left == nil {
		return false
	}
	inBubble(t, left, nil, func(f *bubbleFixture) {
		if !isOpen {
			f.within(slowTick, isHeld)
			require.True(f.t, f.node().Spec.Unschedulable)
		}
		f.host(openNetwork())
		f.within(slowTick, func(n *corev1.Node) bool {
			_, isMarked := n.Annotations[autoscaler.ClusterAutoscaler]
			return isFree(n) && !isMarked && status(n, observation.EtcdMemberCondition) == corev1.ConditionFalse
		})
	})
	return true
}
