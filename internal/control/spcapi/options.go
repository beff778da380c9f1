package spcapi

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// Options describe the cluster to read and the way to the API.
type Options struct {
	// BaseURL is the API's address, with or without a trailing slash:
	// https://api.stackpoint.io.
	BaseURL string
	// TokenFile contains the API token. It is read for every refresh, so that a rotated token
	// takes effect.
	TokenFile string
	// Organization and Cluster are the API's numbers.
	Organization, Cluster int64
	// SecretDir is the mount point of the Secret of SPC's autoscaler. Its files api-token,
	// api-url, organization-id and cluster-id are read for every refresh. The fields above
	// have precedence.
	SecretDir string
	// CAFile contains certificate authorities to trust in addition to the system's.
	CAFile string
	// Transport sends the requests. The default respects the proxy variables and CAFile.
	Transport http.RoundTripper
}

// The keys of the Secret of SPC's autoscaler.
const (
	keyToken        = "api-token"
	keyURL          = "api-url"
	keyOrganization = "organization-id"
	keyCluster      = "cluster-id"
)

// refreshSettings holds the options of one refresh after reading the files.
type refreshSettings struct {
	base                  string
	organization, cluster int64
	token                 string
}

// WithEnvironment fills empty options from the variables of SPC's autoscaler. For the URL,
// the documentation and the code of the autoscaler have different names, and the name in
// the code has precedence. The token is not read from the environment, which is visible to
// every child process and debugger.
func (o Options) WithEnvironment(getenv func(string) string) (Options, error) {
	o.BaseURL = cmp.Or(o.BaseURL, strings.TrimSpace(getenv("SPC_API_BASE_URL")),
		strings.TrimSpace(getenv("SPC_BASE_API_URL")))
	for name, to := range map[string]*int64{"ORGANIZATION_ID": &o.Organization, "CLUSTER_ID": &o.Cluster} {
		text := strings.TrimSpace(getenv(name))
		if *to != 0 || text == "" {
			continue
		}
		n, err := parseNumber(text)
		if err != nil {
			return o, fmt.Errorf("the environment variable %s: %w", name, err)
		}
		*to = n
	}
	return o, nil
}

// check validates the options themselves. The content of files is validated by each
// refresh.
func (o Options) check() error {
	switch {
	case o.TokenFile == "" && o.SecretDir == "":
		return errors.New("the SPC API needs a token file, or the directory of a Secret with " + keyToken)
	case isLikelyToken(o.TokenFile):
		return errors.New("the name of the token file looks like a token; write the token to a file, pass the name of " +
			"that file, and replace the token, because a command line is not secret")
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

// isLikelyToken reports whether a file name is more likely a token. SPC's tokens have 64
// hexadecimal digits.
func isLikelyToken(name string) bool {
	return len(name) >= 32 && strings.Trim(strings.ToLower(name), "0123456789abcdef") == ""
}

func checkURL(base string) error {
	parsed, err := url.Parse(base)
	switch {
	case err != nil:
		return errors.New("the SPC API's URL cannot be parsed; it must be http(s)://host[/path]")
	case parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "":
		return errors.New("the SPC API's URL must be http(s)://host[/path] and nothing else; " +
			"a token belongs in the token file")
	case (parsed.Scheme != "https" && parsed.Scheme != "http") || parsed.Host == "":
		// The message does not quote the URL, which may be the token in the wrong place.
		return errors.New("the SPC API's URL must be http(s)://host[/path]")
	}
	return nil
}

func (o Options) readSettings() (refreshSettings, error) {
	s := refreshSettings{base: o.BaseURL, organization: o.Organization, cluster: o.Cluster}
	var err error
	if s.base == "" {
		if s.base, err = o.readKey(keyURL); err != nil {
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
		text, err := o.readKey(key)
		if err != nil {
			return s, err
		}
		if *to, err = parseNumber(text); err != nil {
			return s, fmt.Errorf("key %s: %w", key, err)
		}
	}
	s.base = strings.TrimRight(s.base, "/")
	s.token, err = o.readToken()
	return s, err
}

// readToken returns the token. Its errors never quote the token.
func (o Options) readToken() (string, error) {
	file := o.TokenFile
	if file == "" {
		file = filepath.Join(o.SecretDir, keyToken)
	}
	text, err := hostfs.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading the SPC token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return "", fmt.Errorf("the SPC token's file %s is empty; put a token of an organization owner into it", file)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("the SPC token's file %s contains more than one word, or binary data; put only the token "+
			"into it", file)
	}
	return token, nil
}

func (o Options) readKey(name string) (string, error) {
	text, err := hostfs.ReadFile(filepath.Join(o.SecretDir, name))
	if err != nil {
		return "", fmt.Errorf("reading key %s of the SPC Secret: %w", name, err)
	}
	return strings.TrimSpace(string(text)), nil
}

func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, errors.New("it must be a number above 0")
	}
	return n, nil
}

// newTransport returns a transport like net/http's default one, which respects the proxy
// variables, with CAFile.
func (o Options) newTransport() (http.RoundTripper, error) {
	if o.Transport != nil {
		return o.Transport, nil
	}
	made := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // It is one, as documented.
	// No connection is kept for the next refresh. It may hang then, and HTTP/2 would use it again.
	made.IdleConnTimeout = refreshInterval / 2
	if o.CAFile == "" {
		return made, nil
	}
	text, err := hostfs.ReadFile(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading the SPC API's certificate authorities: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's certificate authorities: %w", err)
	}
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s contains no certificate", o.CAFile)
	}
	made.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return made, nil
}
