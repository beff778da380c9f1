package spcapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// maxField bounds one field of a record, in bytes. The API's longest are the names of pools; a Node's annotations have
// room for much less than a whole answer.
const maxField = 1 << 10

// list reads a list entry by entry, so that an answer never stands in memory as a whole. What is no list, or not all of
// one, is an error: it must not count as an empty or a smaller cluster.
func list(body io.Reader, of string, each func(json.RawMessage) error) error {
	d := json.NewDecoder(body)
	switch begin, err := d.Token(); {
	case err != nil:
		return unreadable("list of "+of, err)
	case begin == nil:
		return fmt.Errorf("the SPC API's answer is null, not a list of %s", of)
	case begin != json.Delim('['):
		return fmt.Errorf("the SPC API's answer is not a list of %s; is the URL that of the API?", of)
	}
	for at := 1; d.More(); at++ {
		var entry json.RawMessage
		if err := d.Decode(&entry); err != nil {
			return unreadable("list of "+of, err)
		}
		if err := each(entry); err != nil {
			return fmt.Errorf("entry %d of the SPC API's list of %s cannot be used: %w", at, of, plain(err))
		}
	}
	if _, err := d.Token(); err != nil {
		return unreadable("list of "+of, err)
	}
	return nil
}

// sound says what is wrong with a record that a list of nodes may not have.
func sound(r *spc.Record, cluster int64) error {
	switch {
	case r.PK <= 0:
		return errors.New("it has no pk, and so is no node")
	case r.Cluster != 0 && r.Cluster != cluster:
		return fmt.Errorf("node_id %d is of cluster %d, asked for %d", r.PK, r.Cluster, cluster)
	}
	r.Cluster = cluster
	for name, value := range map[string]string{
		"pool_name": r.PoolName, "instance_id": r.InstanceID, "provider_node_id": r.ProviderNodeID, "role": r.Role,
		"group_name": r.GroupName, "private_ip": r.PrivateIP, "public_ip": r.PublicIP, "location": r.Location, "zone": r.Zone,
		"size": r.Size, "state": r.State, "created": r.Created,
	} {
		if len(value) > maxField {
			return fmt.Errorf("%s of node_id %d has %d bytes, more than %d", name, r.PK, len(value), maxField)
		}
	}
	return nil
}

// unreadable says what is wrong with an answer that is not JSON, or not all of it.
func unreadable(what string, err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, errTooLarge):
		return err
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the SPC API's answer is empty, not a %s", what)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the SPC API's answer breaks off in the middle of a %s", what)
	case errors.As(err, &syntax) && syntax.Offset <= 1:
		return fmt.Errorf("the SPC API's answer is not a %s, nor JSON at all; is the URL that of the API, and no login page or proxy between?", what)
	}
	return fmt.Errorf("reading the SPC API's %s: %w", what, plain(err))
}

// plain is what encoding/json says without its vocabulary of Go types.
func plain(err error) error {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		kind, _, _ := strings.Cut(mismatch.Value, " ") // what follows is the value
		return fmt.Errorf("field %q is a %s", mismatch.Field, kind)
	}
	return err
}

// errTooLarge ends the reading of an answer.
const errTooLarge = constError("the SPC API's answer is larger than 32 MiB; is the URL that of the API?")

type constError string

func (e constError) Error() string { return string(e) }

// bounded reads so much and then fails, unlike io.LimitedReader, which ends as if there were no more.
type bounded struct {
	from io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
