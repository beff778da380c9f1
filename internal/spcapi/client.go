// Package spcapi reads the machines of a cluster from the StackPointCloud (SPC) API and carries them to the agents: one
// process asks the API with the one token and publishes an inventory, the agents read that.
package spcapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	// requestTimeout bounds one request with its answer.
	requestTimeout = 30 * time.Second
	// maxBody bounds one answer: 15,000 nodes of about 1 KiB each, doubled.
	maxBody = 32 << 20
	// maxDetail bounds what is read of an answer that is an error.
	maxDetail = 64 << 10
)

// Client reads the SPC API.
type Client struct {
	options Options
	http    *http.Client
}

// NewClient returns a client. Errors say which option is wrong.
func NewClient(o Options) (*Client, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	return &Client{options: o, http: &http.Client{
		Transport: transport, Timeout: requestTimeout,
		// The token goes where it was meant to go and nowhere else, not even to the same host without TLS.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Answer is all that a refresh reads.
type Answer struct {
	Organization int64
	Machines     []spc.Record
	Pools        []spc.Pool
	Cluster      spc.Cluster
	// Partial is why pools or cluster are not known, nil if they are. The machines are known.
	Partial error
}

// Refresh reads the cluster's machines, its pools and the cluster: three requests. The error never holds the token; a
// *StatusError is one that the API sent.
func (c *Client) Refresh(ctx context.Context) (Answer, error) {
	s, err := c.options.settings()
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Organization: s.organization}
	if a.Machines, err = c.machines(ctx, s); err != nil {
		return Answer{}, err
	}
	var pools, cluster error
	a.Pools, pools = c.pools(ctx, s)
	a.Cluster, cluster = c.cluster(ctx, s)
	a.Partial = errors.Join(pools, cluster)
	a.Cluster.PK = s.cluster
	return a, nil
}

// machines lists the cluster's nodes.
func (c *Client) machines(ctx context.Context, s settings) ([]spc.Record, error) {
	records := []spc.Record{}
	err := c.get(ctx, s, "/nodes", func(body io.Reader) error {
		return list(body, "nodes", func(entry json.RawMessage) error {
			var r spc.Record
			if err := json.Unmarshal(entry, &r); err != nil {
				return err
			}
			if err := sound(&r, s.cluster); err != nil {
				return err
			}
			records = append(records, r)
			return nil
		})
	})
	return records, err
}

// pools lists the node pools. The API of 2016 has none, and says so by 404.
func (c *Client) pools(ctx context.Context, s settings) ([]spc.Pool, error) {
	pools := []spc.Pool{}
	err := c.get(ctx, s, "/nodepools", func(body io.Reader) error {
		return list(body, "node pools", func(entry json.RawMessage) error {
			var p spc.Pool
			if err := json.Unmarshal(entry, &p); err != nil {
				return err
			}
			pools = append(pools, p)
			return nil
		})
	})
	if status := new(StatusError); errors.As(err, &status) && status.Code == http.StatusNotFound {
		return nil, nil
	}
	return pools, err
}

func (c *Client) cluster(ctx context.Context, s settings) (spc.Cluster, error) {
	var cluster spc.Cluster
	err := c.get(ctx, s, "", func(body io.Reader) error {
		if err := json.NewDecoder(body).Decode(&cluster); err != nil {
			return unreadable("cluster", err)
		}
		if cluster.PK != s.cluster {
			return fmt.Errorf("the SPC API's answer is of cluster %d, asked for %d; is the URL that of the API?", cluster.PK, s.cluster)
		}
		return nil
	})
	return cluster, err
}

// get asks for something below the cluster and has the answer read if it is one of success.
func (c *Client) get(ctx context.Context, s settings, what string, read func(io.Reader) error) error {
	err := c.ask(ctx, s, what, read)
	return redacted(err, s.token)
}

func (c *Client) ask(ctx context.Context, s settings, what string, read func(io.Reader) error) error {
	where := s.base + "/orgs/" + strconv.FormatInt(s.organization, 10) + "/clusters/" + strconv.FormatInt(s.cluster, 10) + what
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return fmt.Errorf("asking the SPC API: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set("Content-Type", "application/json") // the SDKs send it with every request
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "holdfast")
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("asking the SPC API: %w", unreachable(err))
	}
	defer response.Body.Close() //nolint:errcheck // the body was read to its end or is given up
	if response.StatusCode != http.StatusOK {
		return refusal(response, s.token)
	}
	return read(&bounded{from: response.Body, left: maxBody})
}

// unreachable says in words what a timeout is.
func unreachable(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) && failed.Timeout() {
		return fmt.Errorf("%s did not answer in time; is there a proxy or a firewall between? (%w)", failed.URL, failed.Err)
	}
	return err
}

// plain says that the token travels unencrypted to another host.
func (c *Client) plain() bool {
	s, err := c.options.settings()
	if err != nil {
		return false // which the refresh will tell
	}
	at, err := url.Parse(s.base)
	if err != nil || at.Scheme != "http" {
		return false
	}
	ip := net.ParseIP(at.Hostname())
	return at.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())
}
