// Package spcapi reads the machines of a cluster from the StackPointCloud (SPC) API and carries them to the agents: one
// process asks the API with the one token and publishes an inventory, the agents read that.
package spcapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	requestTimeout = 30 * time.Second
	// maxBody bounds one answer: 15,000 nodes of about 1 KiB each, doubled.
	maxBody = 32 << 20
)

// Options say which cluster to read, and how.
type Options struct {
	// BaseURL is the API's address, with or without a trailing slash: https://api.stackpoint.io.
	BaseURL string
	// TokenFile holds the API token. It is read anew for every request, so that a rotated one is taken up.
	TokenFile string
	// Organization and Cluster are the API's numbers.
	Organization, Cluster int64
	// Transport is what requests go through; nil is http.DefaultTransport, which honours the proxy variables.
	Transport http.RoundTripper
}

// Client reads the SPC API.
type Client struct {
	options Options
	nodes   string
	http    *http.Client
}

// StatusError is an answer of the API other than success.
type StatusError struct {
	Code int
	// Detail is the API's own explanation, empty if it gave none.
	Detail string
	// RetryAfter is how long the API asks to be left alone, 0 if it does not say.
	RetryAfter time.Duration
}

// Error says what the status means for the person who set Holdfast up.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("the SPC API answered %d %s", e.Code, http.StatusText(e.Code))
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	switch e.Code {
	case http.StatusUnauthorized:
		text += "; put a valid token of an organization owner in the token file"
	case http.StatusForbidden:
		text += "; the token must belong to an owner of the organization"
	case http.StatusNotFound:
		text += "; check the organization and cluster numbers"
	}
	return text
}

// NewClient returns a client. Errors say which option is wrong.
func NewClient(o Options) (*Client, error) {
	base, err := url.Parse(o.BaseURL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("parsing the SPC API's URL: %w", err)
	case (base.Scheme != "https" && base.Scheme != "http") || base.Host == "":
		return nil, fmt.Errorf("the SPC API's URL must be http(s)://host[/path], not %q", o.BaseURL)
	case o.TokenFile == "":
		return nil, errors.New("the SPC API needs a token file")
	case o.Organization <= 0 || o.Cluster <= 0:
		return nil, errors.New("the SPC API needs the numbers of the organization and the cluster, both above 0")
	}
	nodes := strings.TrimRight(o.BaseURL, "/") + "/orgs/" + strconv.FormatInt(o.Organization, 10) +
		"/clusters/" + strconv.FormatInt(o.Cluster, 10) + "/nodes"
	return &Client{options: o, nodes: nodes, http: &http.Client{Transport: o.Transport, Timeout: requestTimeout}}, nil
}

// Inventory lists the cluster's machines. The error never holds the token; a *StatusError is one that the API sent.
func (c *Client) Inventory(ctx context.Context) (*spc.Inventory, error) {
	token, err := os.ReadFile(c.options.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("reading the SPC token: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.nodes, nil)
	if err != nil {
		return nil, fmt.Errorf("asking the SPC API: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "holdfast")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking the SPC API: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // the body was read to its end or is given up
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("reading the SPC API's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, &StatusError{Code: response.StatusCode, Detail: detail(body), RetryAfter: retryAfter(response.Header)}
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("the SPC API's answer is larger than %d MiB", maxBody>>20)
	}
	records, err := parse(body)
	if err != nil {
		return nil, err
	}
	return &spc.Inventory{Organization: c.options.Organization, Cluster: c.options.Cluster, Records: records}, nil
}

// parse reads the list of nodes. An answer that is no list is an error, so that it never counts as an empty cluster.
func parse(body []byte) ([]spc.Record, error) {
	var records []spc.Record
	if err := json.Unmarshal(body, &records); err != nil {
		return nil, fmt.Errorf("the SPC API's answer is not a list of nodes (%w); is the URL that of the API?", err)
	}
	if records == nil {
		return nil, errors.New("the SPC API's answer is null, not a list of nodes")
	}
	return records, nil
}

// detail returns the explanation in an error's body, if it is one of the API's.
func detail(body []byte) string {
	var answer struct {
		Detail string `json:"detail"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return ""
	}
	return answer.Detail
}

// retryAfter reads the header of RFC 9110 §10.2.3 in its form of seconds, the only one that the API uses.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
