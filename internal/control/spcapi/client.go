// Package spcapi reads the machines of a cluster from the StackPointCloud (SPC) API and
// makes them available to the agents.
//
// One process runs a [Publisher]. It reads the API through a [Client] with the only token
// and publishes the inventory in a ConfigMap. Each agent follows the ConfigMap with a
// [Reader].
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
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	// refreshTimeout limits the time of one refresh including its responses. The machines are
	// published after it, even if the other requests hang.
	refreshTimeout = 30 * time.Second
	// maxBody limits the size of a response: 15,000 nodes of about 1 KiB each, doubled.
	maxBody = 32 << 20
	// maxDetail limits how much of an error response is read.
	maxDetail = 64 << 10
)

// Client reads the SPC API.
type Client struct {
	options Options
	http    *http.Client
}

// NewClient returns a client, or an error that names the wrong option.
func NewClient(o Options) (*Client, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	transport, err := o.newTransport()
	if err != nil {
		return nil, err
	}
	return &Client{options: o, http: &http.Client{
		Transport: transport,
		// The client sends the token to the configured URL only. A redirect might lead to the
		// same host without TLS.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// RefreshResult holds all data of one refresh.
type RefreshResult struct {
	Organization int64
	Machines     []spc.Record
	Pools        []spc.Pool
	Cluster      spc.Cluster
	// PoolsErr and ClusterErr are the reasons why Pools or Cluster are unknown, or nil. The machines
	// are known in all cases.
	PoolsErr, ClusterErr error
}

// partialErr returns why Pools or Cluster are unknown, or nil.
func (a RefreshResult) partialErr() error { return errors.Join(a.PoolsErr, a.ClusterErr) }

// Refresh reads the cluster's machines, its pools and the cluster in three requests. The
// error never contains the token. It is a *StatusError if the API responded with an error.
func (c *Client) Refresh(ctx context.Context) (RefreshResult, error) {
	s, err := c.options.readSettings()
	if err != nil {
		return RefreshResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	a := RefreshResult{Organization: s.organization}
	if a.Machines, err = c.listMachines(ctx, s); err != nil {
		return RefreshResult{}, err
	}
	a.Pools, a.PoolsErr = c.listPools(ctx, s)
	a.Cluster, a.ClusterErr = c.getCluster(ctx, s)
	a.Cluster.PK = s.cluster
	return a, nil
}

func (c *Client) listMachines(ctx context.Context, s refreshSettings) ([]spc.Record, error) {
	return get(ctx, c.http, s, "/nodes", func(body io.Reader) ([]spc.Record, error) {
		return decodeList(body, "nodes", func(r *spc.Record) error { return checkRecord(r, s.cluster) })
	})
}

// listPools lists the node pools. The API of 2016 has none and responds with 404.
func (c *Client) listPools(ctx context.Context, s refreshSettings) ([]spc.Pool, error) {
	pools, err := get(ctx, c.http, s, "/nodepools", func(body io.Reader) ([]spc.Pool, error) {
		return decodeList(body, "node pools", func(*spc.Pool) error { return nil })
	})
	if status := new(StatusError); errors.As(err, &status) && status.Code == http.StatusNotFound {
		return nil, nil
	}
	return pools, err
}

func (c *Client) getCluster(ctx context.Context, s refreshSettings) (spc.Cluster, error) {
	return get(ctx, c.http, s, "", func(body io.Reader) (cluster spc.Cluster, err error) {
		if err := json.NewDecoder(body).Decode(&cluster); err != nil {
			return cluster, decodeError("cluster", err)
		}
		if cluster.PK != s.cluster {
			err = fmt.Errorf("the SPC API returned cluster %d instead of %d; check the URL", cluster.PK, s.cluster)
		}
		return cluster, err
	})
}

// get requests a path below the cluster and decodes the body of a successful response. The API, a
// proxy or a library may quote the token in an error, which get replaces.
func get[T any](
	ctx context.Context, c *http.Client, s refreshSettings, path string, decode func(io.Reader) (T, error),
) (result T, err error) {
	defer func() {
		if err != nil && strings.Contains(err.Error(), s.token) {
			err = errors.New(hideToken(err.Error(), s.token))
		}
	}()
	target := fmt.Sprintf("%s/orgs/%d/clusters/%d%s", s.base, s.organization, s.cluster, path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return result, fmt.Errorf("calling the SPC API: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set("Content-Type", "application/json") // the SDKs send it with every request
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "holdfast")
	response, err := c.Do(request)
	if err != nil {
		return result, fmt.Errorf("calling the SPC API: %w", explainTimeout(err))
	}
	defer response.Body.Close() //nolint:errcheck // the body is read to its end or not needed
	if response.StatusCode != http.StatusOK {
		return result, newStatusError(response, s.token)
	}
	if response.ContentLength > maxBody {
		return result, errTooLarge
	}
	return decode(http.MaxBytesReader(nil, response.Body, maxBody))
}

// explainTimeout adds the likely cause to a timeout.
func explainTimeout(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) && failed.Timeout() {
		return fmt.Errorf("%s did not respond in time; check for a proxy or a firewall (%w)", failed.URL, failed.Err)
	}
	return err
}

// isTokenUnencrypted reports whether the token is sent to another host without TLS.
func (c *Client) isTokenUnencrypted() bool {
	s, err := c.options.readSettings()
	if err != nil {
		return false // the refresh reports the error
	}
	at, err := url.Parse(s.base)
	if err != nil || at.Scheme != "http" {
		return false
	}
	return at.Hostname() != "localhost" && !net.ParseIP(at.Hostname()).IsLoopback()
}
