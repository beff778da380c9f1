package spcapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/smallfile"
)

// Options say which cluster to read, and how.
type Options struct {
	// BaseURL is the API's address, with or without a trailing slash: https://api.stackpoint.io.
	BaseURL string
	// TokenFile holds the API token. It is read anew for every refresh, so that a rotated one is taken up.
	TokenFile string
	// Organization and Cluster are the API's numbers.
	Organization, Cluster int64
	// SecretDir is where the Secret of SPC's autoscaler is mounted: files api-token, api-url, organization-id and
	// cluster-id, read anew for every refresh. What the fields above say goes before it.
	SecretDir string
	// CAFile holds certificate authorities to trust beside the system's.
	CAFile string
	// Transport is what requests go through. Nil honours the proxy variables and CAFile.
	Transport http.RoundTripper
}

// The names of the Secret's keys, as SPC's autoscaler has them.
const (
	keyToken        = "api-token"
	keyURL          = "api-url"
	keyOrganization = "organization-id"
	keyCluster      = "cluster-id"
)

// settings are the options of one refresh, read and checked.
type settings struct {
	base                  string
	organization, cluster int64
	token                 string
}

// WithEnvironment fills what the options do not say from the variables that SPC's autoscaler reads. Its documentation and
// its code spell that of the URL differently; the code's goes first. The token is not taken from the environment, where
// every child process and debugger sees it.
func (o Options) WithEnvironment(getenv func(string) string) (Options, error) {
	if o.BaseURL == "" {
		o.BaseURL = strings.TrimSpace(getenv("SPC_API_BASE_URL"))
	}
	if o.BaseURL == "" {
		o.BaseURL = strings.TrimSpace(getenv("SPC_BASE_API_URL"))
	}
	for name, to := range map[string]*int64{"ORGANIZATION_ID": &o.Organization, "CLUSTER_ID": &o.Cluster} {
		text := strings.TrimSpace(getenv(name))
		if *to != 0 || text == "" {
			continue
		}
		n, err := number(text)
		if err != nil {
			return o, fmt.Errorf("the environment variable %s: %w", name, err)
		}
		*to = n
	}
	return o, nil
}

// check says what is wrong with the options themselves; what stands in files is for each refresh to find out.
func (o Options) check() error {
	switch {
	case o.TokenFile == "" && o.SecretDir == "":
		return errors.New("the SPC API needs a token file, or the directory of a Secret with " + keyToken)
	case looksLikeToken(o.TokenFile):
		return errors.New("what is given as the token's file looks like a token; write it to a file, name that, and have the token replaced, " +
			"since a command line is no secret")
	case o.Organization < 0 || o.Cluster < 0,
		o.SecretDir == "" && (o.Organization == 0 || o.Cluster == 0):
		return errors.New("the SPC API needs the numbers of the organization and the cluster, both above 0")
	case o.BaseURL == "" && o.SecretDir == "":
		return errors.New("the SPC API needs a URL such as https://api.stackpoint.io")
	case o.BaseURL != "":
		return checkURL(o.BaseURL)
	}
	return nil
}

// looksLikeToken says that a file's name is more likely a token: SPC's have 64 hexadecimal digits.
func looksLikeToken(name string) bool {
	return len(name) >= 32 && strings.Trim(strings.ToLower(name), "0123456789abcdef") == ""
}

func checkURL(base string) error {
	parsed, err := url.Parse(base)
	switch {
	case err != nil:
		return errors.New("the SPC API's URL cannot be read; it must be http(s)://host[/path]")
	case parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "":
		return errors.New("the SPC API's URL must be http(s)://host[/path] and nothing else; a token belongs in the token file")
	case (parsed.Scheme != "https" && parsed.Scheme != "http") || parsed.Host == "":
		return errors.New("the SPC API's URL must be http(s)://host[/path]") // not quoted: it may be the token, in the wrong place
	}
	return nil
}

// settings reads what one refresh needs.
func (o Options) settings() (settings, error) {
	s := settings{base: o.BaseURL, organization: o.Organization, cluster: o.Cluster}
	var err error
	if s.base == "" {
		if s.base, err = o.key(keyURL); err != nil {
			return s, err
		}
		if err = checkURL(s.base); err != nil {
			return s, fmt.Errorf("key %s: %w", keyURL, err)
		}
	}
	for key, to := range map[string]*int64{keyOrganization: &s.organization, keyCluster: &s.cluster} {
		if *to != 0 {
			continue
		}
		text, err := o.key(key)
		if err != nil {
			return s, err
		}
		if *to, err = number(text); err != nil {
			return s, fmt.Errorf("key %s: %w", key, err)
		}
	}
	s.base = strings.TrimRight(s.base, "/")
	s.token, err = o.token()
	return s, err
}

// token reads the token. No error quotes it.
func (o Options) token() (string, error) {
	file := o.TokenFile
	if file == "" {
		file = filepath.Join(o.SecretDir, keyToken)
	}
	text, err := smallfile.Read(file)
	if err != nil {
		return "", fmt.Errorf("reading the SPC token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return "", fmt.Errorf("the SPC token's file %s is empty; put a token of an organization owner into it", file)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("the SPC token's file %s holds more than one word, or what is no text; put the token into it and nothing else", file)
	}
	return token, nil
}

func (o Options) key(name string) (string, error) {
	text, err := smallfile.Read(filepath.Join(o.SecretDir, name))
	if err != nil {
		return "", fmt.Errorf("reading key %s of the SPC Secret: %w", name, err)
	}
	return strings.TrimSpace(string(text)), nil
}

func number(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, errors.New("it must be a number above 0")
	}
	return n, nil
}

// transport is net/http's default one, which honours the proxy variables, with its own authorities and patience.
func (o Options) transport() (http.RoundTripper, error) {
	if o.Transport != nil {
		return o.Transport, nil
	}
	made := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 20 * time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConns:          2,
		ForceAttemptHTTP2:     true,
	}
	if o.CAFile == "" {
		return made, nil
	}
	text, err := smallfile.Read(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading the SPC API's certificate authorities: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's certificate authorities: %w", err)
	}
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("there is no certificate in %s", o.CAFile)
	}
	made.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return made, nil
}
