package etcdprobe

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // The agent does not link it, so an answer cannot use it.
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

const (
	// maxHeap is how much memory the answers of a server may need at the same time, in bytes.
	maxHeap = 20 << 20
	// hostileTimeout is the Prober's timeout in these tests.
	hostileTimeout = 300 * time.Millisecond
)

// The methods of a hostile server.
const (
	rangeMethod  = "/etcdserverpb.KV/Range"
	listMethod   = "/etcdserverpb.Cluster/MemberList"
	alarmMethod  = "/etcdserverpb.Maintenance/Alarm"
	statusMethod = "/etcdserverpb.Maintenance/Status"
)

// A hostileAnswer is what a server sends for one method. It answers the others as etcd does.
type hostileAnswer struct {
	method string
	// unit is sent count times after a valid header, in each message.
	unit  string
	count int
	// messages is how many messages follow each other, at least one.
	messages int
	// text is the text of an error, which is repeated, and metadata the size of headers and trailers,
	// in bytes.
	text     string
	texts    int
	metadata int
	isGzip   bool
	// isSlow: the server waits for the client after each message, and after the headers.
	isSlow bool
}

func hostileAnswers() map[string]hostileAnswer {
	const many = 2_097_000
	return map[string]hostileAnswer{
		"honest":           {},
		"keys":             {method: rangeMethod, unit: "\x12\x00", count: many},
		"members":          {method: listMethod, unit: "\x12\x00", count: many},
		"small list":       {method: listMethod, unit: "\x12\x00", count: maxAnswerSize/2 - 100},
		"empty URLs":       {method: listMethod, unit: "\x12\x80\x7d" + strings.Repeat("\x1a\x00", 8000), count: 1},
		"unknown fields":   {method: alarmMethod, unit: "\x78\x00", count: maxAnswerSize/2 - 100},
		"nested groups":    {method: statusMethod, unit: "\x7b", count: maxAnswerSize - 100},
		"gzip":             {method: listMethod, unit: "\x12\x00", count: many, isGzip: true},
		"gzip of zeros":    {method: rangeMethod, unit: "\x00", count: 16 << 20, isGzip: true},
		"text of an error": {method: statusMethod, text: `x<"`, texts: 1 << 20},
		"expiry in the text": {
			method: statusMethod, texts: 200,
			text: "certificate has expired or is not yet valid: current time x is after ",
		},
		"headers and trailers": {method: alarmMethod, metadata: 4 << 20},
		"many messages":        {method: rangeMethod, unit: "\x12\x00", count: 100, messages: 1 << 30},
		"slow":                 {method: listMethod, isSlow: true},
		"slow, many messages":  {method: alarmMethod, messages: 1 << 30, isSlow: true},
	}
}

// TestHostileList: the list of a cluster has the most members with the most URLs, all of the same
// server. The memory of its side of the connections counts too, so none of the answers is
// compressed: a compressor takes almost a MiB for each connection.
func TestHostileList(t *testing.T) {
	answers := hostileAnswers()
	for _, name := range []string{"keys", "many messages", "text of an error"} {
		t.Run(name, func(t *testing.T) {
			answer := answers[name]
			// The server needs time and memory for each answer too.
			answer.count, answer.texts = min(answer.count, 1<<18), min(answer.texts, 1<<16)
			probeHostile(t, newHostileServer(t, answer, maxMembers, maxURLs), 2*maxHeap)
		})
	}
}

// TestHostileConnection: a server that is not one of gRPC, or breaks its rules.
func TestHostileConnection(t *testing.T) {
	frame := func(kind, flags byte, stream uint32, payload string) string {
		header := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
		return string(binary.BigEndian.AppendUint32(append(header, flags), stream)) + payload
	}
	const data, headers, settings, ping, goAway, update, more = 0, 1, 4, 6, 7, 8, 9
	setting := func(id byte, value string) string { return "\x00" + string(rune(id)) + value }
	first, large := frame(settings, 0, 0, ""), strings.Repeat("x", 16<<10)
	grow := frame(settings, 0, 0, setting(1, "\x7f\xff\xff\xff")+setting(4, "\x7f\xff\xff\xff")+
		setting(5, "\x00\x7f\xff\xff")+setting(6, "\x7f\xff\xff\xff"))
	const answered = "\x88\x5f\x10application/grpc" // :status 200, content-type
	for name, c := range map[string]struct{ once, repeated string }{
		"silent":          {},
		"greeting":        {once: "SSH-2.0-OpenSSH_9.6\r\n"},
		"HTTP/1.1":        {"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", large},
		"zeros":           {repeated: strings.Repeat("\x00", 16<<10)},
		"frame too large": {first + "\xff\xff\xff\x00\x00\x00\x00\x00\x01", large},
		"settings":        {grow, grow},
		"pings":           {first, frame(ping, 0, 0, "12345678")},
		"windows":         {first, frame(update, 0, 0, "\x00\x00\x00\x01")},
		"go away":         {first, frame(goAway, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x0b"+large[:8<<10])},
		"endless headers": {first + frame(headers, 0, 1, answered), frame(more, 0, 1, large)},
		"endless data":    {first + frame(headers, 4, 1, answered), frame(data, 0, 1, large)},
		"endless fields":  {first, frame(headers, 4, 1, answered+strings.Repeat("\x00\x01x\x01y", 3000))},
	} {
		t.Run(name, func(t *testing.T) {
			probeHostile(t, "http://"+serveBytes(t, c.once, c.repeated), maxHeap)
		})
	}
}

// serveBytes returns the address of a server that sends bytes to each client, and then others as
// long as the client reads.
func serveBytes(t *testing.T, once, repeated string) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving errgroup.Group
	serving.Go(func() error {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return nil // the end of the test
			}
			serving.Go(func() error {
				_, _ = io.Copy(io.Discard, conn) // returns when the client closes the connection
				return conn.Close()
			})
			serving.Go(func() error {
				_, err := io.WriteString(conn, once)
				for err == nil && repeated != "" {
					_, err = io.WriteString(conn, repeated)
				}
				return nil
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		require.NoError(t, serving.Wait())
	})
	return listener.Addr().String()
}

// FuzzServer: an answer neither fills the memory nor delays an observation.
func FuzzServer(f *testing.F) {
	methods := []string{"", rangeMethod, listMethod, alarmMethod, statusMethod}
	for _, a := range hostileAnswers() {
		f.Add(uint8(slices.Index(methods, a.method)), a.unit, uint32(a.count), uint32(a.messages),
			a.text, uint32(a.texts), uint32(a.metadata), a.isGzip, a.isSlow)
	}
	f.Fuzz(func(t *testing.T, method uint8, unit string, count, messages uint32, text string, texts, metadata uint32,
		isGzip, isSlow bool,
	) {
		if uint64(len(unit))*uint64(count) >= 32<<20 || uint64(len(text))*uint64(texts)|uint64(metadata) >= 8<<20 {
			return // so much would be the server's own memory
		}
		answer := hostileAnswer{
			method: methods[int(method)%len(methods)], unit: unit, count: int(count), messages: int(messages),
			text: text, texts: int(texts), metadata: int(metadata), isGzip: isGzip, isSlow: isSlow,
		}
		url := newHostileServer(t, answer, 3, 2)
		o := probeHostile(t, url, maxHeap)
		if answer.method != "" {
			return
		}
		for range 10 { // an honest server beside other tests may need longer than the timeout
			if o.Linearizable {
				return
			}
			o = probeHostile(t, url, maxHeap)
		}
		require.Fail(t, o.Problem)
	})
}

// probeHostile identifies and observes a server twice, and requires that neither takes too much
// time or memory.
func probeHostile(t *testing.T, url string, limit int64) v1alpha1.Observation {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // as the agent
	server := evidence.Server{Where: "hostile", PID: 1, Config: evidence.Config{ListenClientURLs: []string{url}}}
	p := New(Options{Timeout: hostileTimeout})
	defer p.Close()
	runtime.GC()
	peak := startHeapSampler(t)
	var o v1alpha1.Observation
	// The second round begins with the list of the first.
	for i := 0; i == 0 || i == 1 && len(o.Members) > 0; i++ {
		began := time.Now()
		p.Identify(t.Context(), server)
		o = p.Observe(t.Context(), server, fakeIdentity())
		require.Less(t, time.Since(began), 5*hostileTimeout+time.Minute) // Other tests run beside it.
		requireValid(t, o)
	}
	require.LessOrEqual(t, peak(), limit)
	return o
}

// startHeapSampler returns a function that returns by how many bytes the heap has grown at most
// since the start.
func startHeapSampler(t *testing.T) (peak func() int64) {
	t.Helper()
	sample := func() int64 {
		samples := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		runtimemetrics.Read(samples)
		return int64(samples[0].Value.Uint64())
	}
	begin, highest := sample(), int64(0)
	ctx, cancel := context.WithCancel(t.Context())
	var sampling errgroup.Group
	sampling.Go(func() error {
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return nil
			case <-tick.C:
				highest = max(highest, sample())
			}
		}
	})
	return func() int64 {
		cancel()
		require.NoError(t, sampling.Wait())
		t.Logf("%s: the heap grew from %d to %d KiB", t.Name(), begin>>10, highest>>10)
		return highest - begin
	}
}

// A rawCodec sends messages as they are.
type rawCodec struct{}

type rawMessage []byte

func (rawCodec) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*message.(*rawMessage))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*rawMessage) = data.Materialize()
	return nil
}

func (rawCodec) Name() string { return "proto" }

// newHostileServer returns the URL of a server. Its list has this many members, and URLs of each,
// which are all its own.
func newHostileServer(t *testing.T, answer hostileAnswer, members, urls int) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url := "http://" + listener.Addr().String()
	honest := honestAnswers(t, url, members, urls)
	body := append(bytes.Clone(honest[answer.method]), strings.Repeat(answer.unit, answer.count)...)
	large := metadata.Pairs("x", strings.Repeat("x", answer.metadata))
	answer.text = strings.Repeat(answer.text, answer.texts)
	g := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxSendMsgSize(1<<30),
		grpc.ReadBufferSize(1<<10), grpc.WriteBufferSize(1<<10),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			var request rawMessage
			if err := stream.RecvMsg(&request); err != nil {
				return err
			}
			method, _ := grpc.MethodFromServerStream(stream)
			if method != answer.method {
				message := rawMessage(honest[method])
				return stream.SendMsg(&message)
			}
			return answer.send(stream, body, large)
		}))
	var serving errgroup.Group
	serving.Go(func() error { return g.Serve(listener) })
	t.Cleanup(func() {
		g.Stop()
		require.NoError(t, serving.Wait())
	})
	return url
}

// send sends the answer. body is one message.
func (a hostileAnswer) send(stream grpc.ServerStream, body rawMessage, large metadata.MD) error {
	if a.isGzip {
		if err := grpc.SetSendCompressor(stream.Context(), "gzip"); err != nil {
			return err
		}
	}
	if a.metadata > 0 {
		_ = stream.SetHeader(large)
		stream.SetTrailer(large)
	}
	for i := range max(a.messages, 1) {
		if a.isSlow && i > 0 {
			<-stream.Context().Done()
		}
		if err := stream.SendMsg(&body); err != nil {
			return err
		}
	}
	if a.isSlow {
		<-stream.Context().Done()
	}
	if a.text != "" {
		return status.Error(codes.Internal, a.text)
	}
	return nil
}

// honestAnswers returns etcd's answers by method.
func honestAnswers(t *testing.T, url string, members, urls int) map[string][]byte {
	t.Helper()
	header := &pb.ResponseHeader{ClusterId: fakeCluster, MemberId: fakeMember}
	list := &pb.MemberListResponse{Header: header}
	for i := range members {
		m := &pb.Member{ID: fakeMember + uint64(i), Name: fmt.Sprint("m", i)}
		for j := range urls {
			m.ClientURLs = append(m.ClientURLs, fmt.Sprintf("%s/%d-%d", url, i, j))
		}
		list.Members = append(list.Members, m)
	}
	answers := map[string][]byte{}
	for method, message := range map[string]proto.Message{
		rangeMethod: &pb.RangeResponse{Header: header}, listMethod: list, alarmMethod: &pb.AlarmResponse{Header: header},
		// An error makes the prober ask for the alarms.
		statusMethod: &pb.StatusResponse{
			Header: header, Version: "3.6.0", Leader: fakeMember, Errors: []string{"etcdserver: no leader"},
		},
	} {
		encoded, err := proto.Marshal(message)
		require.NoError(t, err)
		answers[method] = encoded
	}
	return answers
}

// TestLargestHonestAnswer: a list that just fits into an observation, with names of four bytes for
// each character and alarms of all members, is within the limits of an answer.
func TestLargestHonestAnswer(t *testing.T) {
	server := newFakeServer(t, nil)
	server.alarms = &pb.AlarmResponse{Header: server.header}
	// The first member has the server's URL, and each has a name.
	left := maxListLength - maxMembers*(maxNameLength+len("NOSPACECORRUPT")) - len(server.url)
	server.list = []*pb.Member{}
	for i := range maxMembers {
		m := &pb.Member{ID: fakeMember + uint64(i), Name: strings.Repeat("\U0001F980", maxNameLength)}
		if i == 0 {
			m.ClientURLs = []string{server.url}
		}
		for len(m.PeerURLs) < maxURLs && left > 0 {
			url := "http://127.0.0.1:1/"
			url += strings.Repeat("x", max(0, min(maxURLLength, left)-len(url)))
			m.PeerURLs, left = append(m.PeerURLs, url), left-len(url)
		}
		server.list = append(server.list, m)
		for _, kind := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
			server.alarms.Alarms = append(server.alarms.Alarms, &pb.AlarmMember{MemberID: m.ID, Alarm: kind})
		}
	}
	require.Greater(t, proto.Size(&pb.MemberListResponse{Members: server.list}), 20<<10)
	o := server.observe(t)
	require.True(t, o.Linearizable, o.Problem)
	require.False(t, o.AlarmsUnknown)
	require.Empty(t, o.Problem)
	require.Len(t, o.Members, maxMembers)
	for _, m := range o.Members {
		require.Equal(t, []string{"CORRUPT", "NOSPACE"}, m.Alarms)
		require.Equal(t, m.ID == o.LocalMember, m.Healthy)
	}
	requireValid(t, o)
}
