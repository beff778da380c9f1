package etcdprobe

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The limits of one answer, which any member of a cluster can choose. An agent probes all members
// at the same time, within 128 MiB of memory.
const (
	// maxAnswerSize is the size of a message, in bytes. The largest are member lists. One that fits
	// into an observation has 8000 characters, in UTF-8.
	maxAnswerSize = 32 << 10
	// maxAnswerFields is the number of fields of a message: one for each member or alarm, and a few
	// more. A member needs seventy times more memory than an empty field in a message.
	maxAnswerFields = 8 + maxMembers*maxAlarms
	// maxHeaderSize is the size of the headers and trailers, with the text of an error, in bytes.
	maxHeaderSize = 16 << 10
	// windowSize is the number of bytes that a server may send before the client has read any. It is
	// the initial value of HTTP/2. gRPC raises it up to 16 MiB by default.
	windowSize = 64<<10 - 1
	// bufferSize is the size of the buffers of a connection, in bytes. gRPC's default is 32 KiB.
	bufferSize = 4 << 10
)

// answerLimits returns the options of a connection that limit what a server can make the client
// keep in memory.
func answerLimits() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxAnswerSize),
			grpc.ForceCodecV2(limitedCodec{encoding.GetCodecV2(proto.Name)}),
		),
		grpc.WithMaxHeaderListSize(maxHeaderSize),
		// The window of the connection is the same by default.
		grpc.WithStaticStreamWindowSize(windowSize),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
	}
}

// A limitedCodec is gRPC's codec for messages of at most maxAnswerFields fields.
type limitedCodec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c limitedCodec) Unmarshal(data mem.BufferSlice, message any) error {
	rest := data.Materialize()
	for fields := 0; len(rest) > 0; fields++ {
		if fields == maxAnswerFields {
			return fmt.Errorf("the response has more than %d fields", maxAnswerFields)
		}
		_, _, length := protowire.ConsumeField(rest)
		if length < 0 {
			break // the codec reports what is wrong
		}
		rest = rest[length:]
	}
	return c.CodecV2.Unmarshal(data, message)
}
