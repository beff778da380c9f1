package simulation

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// TestTraces plays the files in testdata/traces. A file begins with comments that tell what
// happened, and has one or more traces. Each begins with a line "start", has one step a line, and
// plays in a simulation of its own. The maps below describe the steps. A step that asks for an
// answer ends with ": " and that answer: "allowed", or for example
//
//	delete n1: refused QuorumWouldBeLost, (c1a1): counts as lost
//
// with the reason, and a part of one line of the message. With the flag -rewrite, the test writes
// the answers that it receives, and that differ, into the files.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/traces/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			lines := strings.Split(string(text), "\n")
			for i, line := range lines {
				if rest, isStart := strings.CutPrefix(line, "start"); isStart {
					t.Run(fmt.Sprint("line ", i+1), func(t *testing.T) { playTrace(t, file, lines, i, profileOf(t, rest)) })
				}
			}
			if after := strings.Join(lines, "\n"); flagValue[bool]("rewrite") && after != string(text) {
				require.NoError(t, os.WriteFile(file, []byte(after), 0o600))
			}
		})
	}
}

// profileOf returns the profile of "start [hosts=3] [members=3[,3]] [machines=KIND] [drains]
// [foreign-urls] [unknown-machines]". The
// second cluster begins at the second machine.
func profileOf(t *testing.T, words string) profile {
	t.Helper()
	p := profile{hosts: 3, clusters: []int{3}, bound: true}
	for _, word := range strings.Fields(words) {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "hosts":
			p.hosts = number(t, value)
		case "members":
			p.clusters = nil
			for one := range strings.SplitSeq(value, ",") {
				p.clusters = append(p.clusters, number(t, one))
			}
			p.hosts = max(p.hosts, p.clusters[0])
		case "machines":
			p.machineKind, p.enabled[machines] = value, true
		case "unknown-machines":
			p.unknownMachines = true
		case "foreign-urls":
			p.foreignURLs = true
		case "drains":
			p.enabled[drains] = true
		default:
			require.Fail(t, "unknown word", word)
		}
	}
	return p
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// playTrace plays the trace that begins at a line.
func playTrace(t *testing.T, file string, lines []string, start int, p profile) {
	t.Helper()
	runScenarioWith(t, p, func(s *scenario) {
		trace, answers := &tracePlayer{scenario: s, requests: map[string]*simulatedDeletion{}}, 0
		for i := start + 1; i < len(lines) && !strings.HasPrefix(lines[i], "start"); i++ {
			if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
				continue
			}
			at := fmt.Sprintf("%s:%d: %s", file, i+1, lines[i])
			s.log("%s", at)
			step, want, _ := strings.Cut(lines[i], ": ")
			got, message := trace.play(strings.Fields(step))
			s.recordSnapshot()
			require.False(s.t, s.hasFailed(), at)
			switch {
			case isAnswer(want, got, message):
			case flagValue[bool]("rewrite") && got != "":
				lines[i] = step + ": " + strings.TrimSuffix(got+", "+cause(message), ", ")
			default:
				require.Fail(s.t, "another answer than expected", "%s\nis: %s\n%s", at, got, message)
			}
			if got != "" {
				answers++
			}
		}
		require.NotZero(s.t, answers, "%s:%d: this trace expects no answer", file, start+1)
	})
}

// isAnswer reports whether a trace expects this answer. Of a refusal it must name the cause.
func isAnswer(want, got, message string) bool {
	part, hasPart := strings.CutPrefix(want, got+", ")
	return want == got && message == "" || hasPart && part != "" && strings.Contains(message, part)
}

// cause returns the part of a refusal that tells its cause: the begin of the first line, or of that
// of the first member that is neither on the Node nor healthy.
func cause(message string) string {
	lost := regexp.MustCompile(`\(c\da\d+\)(?: on node \w+)?: (?:counts|away|not)[^:(]*(?:: [^:(]* (?:node \w+|removed))?`)
	if found := lost.FindString(message); found != "" {
		return strings.TrimSpace(found)
	}
	return regexp.MustCompile(`^[^:;\n]*`).FindString(message)
}

// A tracePlayer plays one trace.
type tracePlayer struct {
	*scenario
	// requests are the last requests about each machine, by its name.
	requests map[string]*simulatedDeletion
}

// play plays one step. The answer is empty if the step asks for none.
func (s *tracePlayer) play(words []string) (answer, message string) {
	s.t.Helper()
	verb, args := words[0], words[1:]
	if act := hostSteps()[verb]; act != nil {
		for _, name := range args {
			act(s, s.host(name))
		}
		return "", ""
	}
	if act := memberSteps()[verb]; act != nil {
		e := s.etcds[0]
		for _, name := range args {
			if i := slices.IndexFunc(s.etcds, func(e *simulatedEtcd) bool { return string(e.id) == name }); i >= 0 {
				e = s.etcds[i]
			} else {
				act(s, e, s.host(name))
			}
		}
		return "", ""
	}
	if act := otherSteps()[verb]; act != nil {
		act(s, args)
		return "", ""
	}
	ask := questions()[verb]
	require.NotNil(s.t, ask, "unknown step %q", verb)
	return ask(s, args)
}

// host returns the last machine of this name.
func (s *tracePlayer) host(name string) *simulatedHost {
	s.t.Helper()
	for _, h := range slices.Backward(s.hosts) {
		if h.name == name {
			return h
		}
	}
	require.Fail(s.t, "no machine", name)
	return nil
}

// hostSteps returns what happens to a machine, its Node or its agent: VERB MACHINE...
func hostSteps() map[string]func(*tracePlayer, *simulatedHost) {
	setAgent := func(silent, blind bool) func(*tracePlayer, *simulatedHost) {
		return func(_ *tracePlayer, h *simulatedHost) { h.agent.silent, h.agent.blind = silent, blind }
	}
	edit := func(change func(*corev1.Node)) func(*tracePlayer, *simulatedHost) {
		return func(s *tracePlayer, h *simulatedHost) { s.editNode(h, change) }
	}
	return map[string]func(*tracePlayer, *simulatedHost){
		"agent-stops":            setAgent(true, false),
		"certificate-expires":    setAgent(false, true), // that of the agent: it reads no list
		"agent-works":            setAgent(false, false),
		"machine-stops":          func(_ *tracePlayer, h *simulatedHost) { h.up = false },
		"machine-starts":         func(s *tracePlayer, h *simulatedHost) { h.up = true; s.restartAgent(h) },
		"machine-ends":           func(s *tracePlayer, h *simulatedHost) { s.terminate(h) },
		"kubelet-registers":      func(s *tracePlayer, h *simulatedHost) { s.registerNode(h) },
		"node-vanishes":          func(s *tracePlayer, h *simulatedHost) { s.deleteNodeDirectly(h) },
		"node-gets-finalizer":    edit(func(n *corev1.Node) { n.Finalizers = []string{karpenterFinalizer} }),
		"node-loses-finalizer":   edit(func(n *corev1.Node) { n.Finalizers = nil }),
		"node-loses-labels":      edit(func(n *corev1.Node) { n.Labels = nil }),
		"node-loses-annotations": edit(func(n *corev1.Node) { n.Annotations = nil }),
		"node-loses-addresses":   edit(func(n *corev1.Node) { n.Status.Addresses = nil }),
		"node-is-written": edit(func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Written"})
		}),
		"autoscaler-marks": func(s *tracePlayer, h *simulatedHost) {
			s.editNode(h, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: casTaint, Effect: corev1.TaintEffectNoSchedule}}
			})
			s.addLoss(h, s.knowledgeAbout(h.name, h.node).bound[h.node])
		},
		"break-glass": func(s *tracePlayer, h *simulatedHost) { s.useBreakGlassFor(h) },
		"ask":         func(s *tracePlayer, h *simulatedHost) { s.requests[h.name] = s.startDelete(h, false, false) },
		"ask-dry-run": func(s *tracePlayer, h *simulatedHost) { s.requests[h.name] = s.startDelete(h, true, false) },
		// one of the requests for a collection of Nodes
		"ask-collection": func(s *tracePlayer, h *simulatedHost) { s.requests[h.name] = s.startDelete(h, false, true) },
		"commit":         func(s *tracePlayer, h *simulatedHost) { s.commit(s.requests[h.name]) },
		"abandon":        func(s *tracePlayer, h *simulatedHost) { s.abandon(s.requests[h.name], "another plugin refuses") },
		// The program that drains the node, or whose object stands for the machine, does its next step.
		"drain-continues": func(s *tracePlayer, h *simulatedHost) { s.stepDrain(s.drainOf(h)) },
		"node-opens": func(s *tracePlayer, h *simulatedHost) {
			s.setClosed(&simulatedDrain{host: h, uid: h.node}, false)
		},
		"machine-object-continues": func(s *tracePlayer, h *simulatedHost) { s.stepMachine(s.machineOf(h)) },
		"nodeclaim-registers":      func(s *tracePlayer, h *simulatedHost) { s.setRegistered(h, true) },
		"nodeclaim-unregisters":    func(s *tracePlayer, h *simulatedHost) { s.setRegistered(h, false) },
		// kured does its next step with the first machine.
		"kured-continues": func(s *tracePlayer, _ *simulatedHost) { s.kured.step() },
	}
}

// memberSteps returns what happens to a member: VERB [CLUSTER] MACHINE...
func memberSteps() map[string]func(*tracePlayer, *simulatedEtcd, *simulatedHost) {
	return map[string]func(*tracePlayer, *simulatedEtcd, *simulatedHost){
		"member-stops":  func(_ *tracePlayer, e *simulatedEtcd, h *simulatedHost) { e.memberOn(h).running = false },
		"member-starts": func(_ *tracePlayer, e *simulatedEtcd, h *simulatedHost) { e.memberOn(h).running = true },
		"member-joins":  func(s *tracePlayer, e *simulatedEtcd, h *simulatedHost) { s.addMemberOn(e, h, true) },
		"learner-joins": func(s *tracePlayer, e *simulatedEtcd, h *simulatedHost) { s.addMemberOn(e, h, false) },
		"voter-is-added": func(s *tracePlayer, e *simulatedEtcd, h *simulatedHost) { // it does not start
			_, ok := e.join(h, false)
			require.True(s.t, ok)
		},
		"promote": func(s *tracePlayer, e *simulatedEtcd, h *simulatedHost) {
			require.True(s.t, e.promote(e.memberOn(h)))
		},
		"member-leaves": func(s *tracePlayer, e *simulatedEtcd, h *simulatedHost) {
			m := e.memberOn(h)
			require.True(s.t, e.remove(m), "etcd refuses to remove member %s", m.id)
			m.wiped = true
		},
		"settle": func(s *tracePlayer, e *simulatedEtcd, h *simulatedHost) {
			c, err := s.api.cluster(string(e.id))
			require.NoError(s.t, err)
			for _, g := range c.Spec.Grants {
				if g.Node == h.name {
					s.settleGrant(c, g.NodeUID)
				}
			}
		},
	}
}

// otherSteps returns the other steps.
func otherSteps() map[string]func(*tracePlayer, []string) {
	return map[string]func(*tracePlayer, []string){
		// advance DURATION
		"advance": func(s *tracePlayer, args []string) { s.advance(s.duration(args[0])) },
		// renames HOST NAME: the host registers next under this name
		"renames": func(s *tracePlayer, args []string) { s.host(args[0]).name = args[1] },
		// machine-comes NAME: its kubelet registers
		"machine-comes": func(s *tracePlayer, args []string) { s.addHost(args[0]) },
		// replica NUMBER: it answers from now on
		"replica": func(s *tracePlayer, args []string) {
			i := number(s.t, args[0])
			s.choices.next = func(int) int { return i }
		},
		// leads NUMBER, restarts NUMBER
		"leads":    func(s *tracePlayer, args []string) { s.replicas[number(s.t, args[0])].startLeading() },
		"restarts": func(s *tracePlayer, args []string) { s.restartReplica(number(s.t, args[0])) },
		// watches-hang OBJECTS REPLICA..., watches-work OBJECTS REPLICA...
		"watches-hang": func(s *tracePlayer, args []string) { s.stall(args, true) },
		"watches-work": func(s *tracePlayer, args []string) { s.stall(args, false) },
		// clock REPLICA DURATION: its clock is ahead by that
		"clock": func(s *tracePlayer, args []string) {
			s.replicas[number(s.t, args[0])].skew.Store(int64(s.duration(args[1])))
		},
		// block REPLICA CALL, fail CALL, unblock: of the calls whose description has these words
		"block": func(s *tracePlayer, args []string) {
			i, what := number(s.t, args[0]), strings.Join(args[1:], " ")
			s.isBlocked = func(c *apiCall) bool { return c.replica.number == i && strings.Contains(c.what, what) }
		},
		"fail": func(s *tracePlayer, args []string) {
			what := strings.Join(args, " ")
			s.isBlocked = func(c *apiCall) bool {
				if strings.Contains(c.what, what) && !c.done {
					c.fail(errors.New("etcd: request timed out"))
				}
				return false
			}
		},
		"unblock": func(s *tracePlayer, _ []string) { s.isBlocked = nil },
		// A user who has the permission deletes an EtcdCluster.
		"etcdcluster-is-deleted": func(s *tracePlayer, _ []string) { s.deleteAnyCluster() },
		// drain MACHINE STYLE: cordons the node
		"drain": func(s *tracePlayer, args []string) {
			style := slices.Index([]string{"reboots", "opens-first", "ends-machine", "deletes-first"}, args[1])
			require.NotEqual(s.t, -1, style)
			s.beginDrain(s.host(args[0]), drainStyle(style))
		},
	}
}

func (s *tracePlayer) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(s.t, err)
	return d
}

func (s *tracePlayer) stall(args []string, stalled bool) {
	for _, i := range args[1:] {
		r := s.replicas[number(s.t, i)]
		watch := map[string]*bool{
			"nodes": &r.caches.nodes.stalled, "etcdclusters": &r.caches.clusters.stalled,
			"machines": &r.machineWatchStalled, "etcdobservations": &r.caches.observations.stalled,
		}[args[0]]
		require.NotNil(s.t, watch)
		*watch = stalled
	}
}

// questions returns the steps that ask for an answer.
func questions() map[string]func(*tracePlayer, []string) (answer, message string) {
	return map[string]func(*tracePlayer, []string) (string, string){
		// delete NODE [within DURATION]: with it, the program tries again, and carries the deletion out
		"delete": func(s *tracePlayer, args []string) (string, string) {
			return s.request(args, s.tryDelete, s.commit)
		},
		// delete-machine NODE: the Machine or NodeClaim of the Node
		"delete-machine": func(s *tracePlayer, args []string) (string, string) {
			return s.request(args, s.tryDeleteMachine, nil)
		},
		// evict NODE [within DURATION]: the guard pod, in a drain
		"evict": func(s *tracePlayer, args []string) (string, string) {
			return s.request(args, func(h *simulatedHost) *simulatedDeletion {
				s.tryEvict(s.drainOf(h))
				return s.drainOf(h).request
			}, nil)
		},
		// answer NODE: that of the last request
		"answer": func(s *tracePlayer, args []string) (string, string) { return answerOf(s.requests[args[0]]) },
		// grants CLUSTER: their number
		"grants": func(s *tracePlayer, args []string) (string, string) {
			c, err := s.api.cluster(args[0])
			require.NoError(s.t, err)
			return strconv.Itoa(len(c.Spec.Grants)), ""
		},
		// look MACHINE: what is true of it
		"look": func(s *tracePlayer, args []string) (string, string) { return s.look(s.host(args[0])), "" },
	}
}

// request tries a request once, or until it is allowed. Then it carries it out.
func (s *tracePlayer) request(
	args []string, try func(*simulatedHost) *simulatedDeletion, carryOut func(*simulatedDeletion),
) (answer, message string) {
	h, begun := s.host(args[0]), time.Now()
	d := try(h)
	if len(args) == 3 {
		for limit := s.duration(args[2]); !d.wasAllowed && time.Since(begun) < limit; d = try(h) {
			s.advance(3 * time.Second)
		}
		for d.wasAllowed && !d.done && carryOut != nil {
			carryOut(d)
			s.await(d) // if the Node has changed, it is reviewed again
		}
	}
	s.requests[h.name] = d
	return answerOf(d)
}

// answerOf returns the answer to a request, and the message of a refusal.
func answerOf(d *simulatedDeletion) (answer, message string) {
	switch {
	case d.review != nil:
		return "none yet", ""
	case !d.wasAllowed:
		return fmt.Sprint("refused ", d.reason), d.answer
	case d.reason == quorum.QuorumKept || d.reason == "":
		return "allowed", ""
	}
	return fmt.Sprint("allowed ", d.reason), ""
}

// look returns what is true of a machine.
func (s *tracePlayer) look(h *simulatedHost) string {
	n, err := s.api.node(h.name)
	var words []string
	for _, c := range []struct {
		word string
		is   bool
	}{
		{"up", h.up && !h.killed},
		{"open", s.isOpen(h.name)},
		{"labelled", err == nil && observation.IsLabelled(n)},
		{"guarded", s.api.pods[guard.Name(h.name)] != nil},
		{"hooked", s.machines != nil && s.machineOf(h).IsHooked},
		{"ending", s.machines != nil && s.machineOf(h).Deleting},
	} {
		if c.is {
			words = append(words, c.word)
		}
	}
	return cmp.Or(strings.Join(words, ", "), "gone")
}

// setRegistered makes the NodeClaim of a machine one whose Node Karpenter knows, or not.
func (s *tracePlayer) setRegistered(h *simulatedHost, is bool) {
	m := s.machineOf(h)
	if m.IsRegistered, m.Node = is, ""; is {
		m.Node = h.name
	}
	s.machines.put(m)
}
