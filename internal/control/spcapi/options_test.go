package spcapi_test

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

func TestInvalidOptions(t *testing.T) {
	good := spcapi.Options{BaseURL: "https://spc.example", TokenFile: "/t", Organization: 1, Cluster: 1}
	for name, tc := range map[string]struct {
		change func(*spcapi.Options)
		want   string
	}{
		"no scheme":      {func(o *spcapi.Options) { o.BaseURL = "spc.example" }, "http(s)://"},
		"unknown scheme": {func(o *spcapi.Options) { o.BaseURL = "ftp://spc.example" }, "http(s)://"},
		"no URL":         {func(o *spcapi.Options) { o.BaseURL = "" }, "needs a URL such as"},
		"malformed URL":  {func(o *spcapi.Options) { o.BaseURL = "https://" + token + "%zz" }, "cannot be parsed"},
		"password in the URL": {
			func(o *spcapi.Options) { o.BaseURL = "https://x:" + token + "@spc.example" }, "a token belongs in the token file",
		},
		"token in the URL": {
			func(o *spcapi.Options) { o.BaseURL = "https://spc.example?token=" + token }, "a token belongs in the token file",
		},
		"token as the URL":  {func(o *spcapi.Options) { o.BaseURL = token }, "http(s)://"},
		"token as the file": {func(o *spcapi.Options) { o.TokenFile = token }, "write the token to a file"},
		"no token file":     {func(o *spcapi.Options) { o.TokenFile = "" }, "token file"},
		"no organization":   {func(o *spcapi.Options) { o.Organization = 0 }, "numbers"},
		"no cluster":        {func(o *spcapi.Options) { o.Cluster = -1 }, "numbers"},
		"no CA file":        {func(o *spcapi.Options) { o.CAFile = "/nowhere/ca.crt" }, "certificate authorities"},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			tc.change(&o)
			_, err := spcapi.NewClient(o)
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), token)
		})
	}
	_, err := spcapi.NewClient(good)
	require.NoError(t, err)
	good.CAFile = writeFile(t, "ca.crt", "no certificate")
	_, err = spcapi.NewClient(good)
	require.ErrorContains(t, err, "ca.crt contains no certificate")
}

// The Secret of SPC's autoscaler is mounted without changes.
func TestSecretDir(t *testing.T) {
	s, base := serve(t)
	s.SetNodes(fullRecord())
	dir := t.TempDir()
	put := func(key, value string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600))
	}
	put("api-token", token)
	put("api-url", base.BaseURL+"/\n")
	put("organization-id", "111\n")
	put("cluster-id", " 23391 ")
	options := spcapi.Options{SecretDir: dir}
	got, err := refresh(t, options)
	require.NoError(t, err)
	require.Len(t, got.Machines, 1)

	put("cluster-id", "9")
	_, err = refresh(t, options)
	require.ErrorContains(t, err, "404")
	options.Cluster = 23391
	_, err = refresh(t, options)
	require.NoError(t, err, "an option must have precedence over the Secret")

	invalid := map[string]string{"organization-id": "many", "api-url": "https://x:" + token + "@spc.example"}
	for key, value := range invalid {
		before, err := os.ReadFile(filepath.Join(dir, key))
		require.NoError(t, err)
		put(key, value)
		_, err = refresh(t, options)
		require.ErrorContains(t, err, "key "+key+": ")
		require.NotContains(t, err.Error(), token)
		require.NoError(t, os.Remove(filepath.Join(dir, key)))
		_, err = refresh(t, options)
		require.ErrorContains(t, err, "reading key "+key+" of the SPC Secret")
		put(key, string(before))
	}
}

func TestTokenFile(t *testing.T) {
	s, options := serve(t)
	client, err := spcapi.NewClient(options)
	require.NoError(t, err)
	s.Token = "b34e1111"
	_, err = client.Refresh(t.Context())
	require.ErrorContains(t, err, "put a valid token")
	require.NoError(t, os.WriteFile(options.TokenFile, []byte(s.Token), 0o600))
	_, err = client.Refresh(t.Context())
	require.NoError(t, err, "a rotated token must take effect")

	for text, want := range map[string]string{
		"": "is empty", " \n": "is empty",
		token + "\n" + token: "more than one word", token + "\x00": "more than one word",
		strings.Repeat("x", 2<<20): "larger than a mebibyte",
	} {
		require.NoError(t, os.WriteFile(options.TokenFile, []byte(text), 0o600))
		_, err = client.Refresh(t.Context())
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), token)
	}
	require.NoError(t, os.Remove(options.TokenFile))
	_, err = client.Refresh(t.Context())
	require.ErrorContains(t, err, "reading the SPC token")
}

func TestEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		given spcapi.Options
		env   map[string]string
		want  spcapi.Options
		err   string
	}{
		"empty": {},
		"name in code": {
			env: map[string]string{"SPC_API_BASE_URL": "https://a"}, want: spcapi.Options{BaseURL: "https://a"},
		},
		"name in manual": {
			env: map[string]string{"SPC_BASE_API_URL": "https://b\n"}, want: spcapi.Options{BaseURL: "https://b"},
		},
		"all": {
			env: map[string]string{
				"SPC_API_BASE_URL": "https://a", "SPC_BASE_API_URL": "https://b", "ORGANIZATION_ID": "6", "CLUSTER_ID": "504",
			},
			want: spcapi.Options{BaseURL: "https://a", Organization: 6, Cluster: 504},
		},
		"precedence of flags": {
			given: spcapi.Options{BaseURL: "https://c", Organization: 1, Cluster: 2},
			env:   map[string]string{"SPC_API_BASE_URL": "https://a", "ORGANIZATION_ID": "x", "CLUSTER_ID": "504"},
			want:  spcapi.Options{BaseURL: "https://c", Organization: 1, Cluster: 2},
		},
		"invalid number": {
			env: map[string]string{"CLUSTER_ID": "mine"},
			err: "the environment variable CLUSTER_ID: it must be a number above 0",
		},
		"token is ignored": {env: map[string]string{"CLUSTER_API_TOKEN": token}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.given.WithEnvironment(func(name string) string { return c.env[name] })
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestCAFile(t *testing.T) {
	authority, err := pki.NewCA("spc")
	require.NoError(t, err)
	pair, err := authority.Issue(pki.CertOptions{CommonName: "spc", Server: true, Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	serving, err := pair.TLS()
	require.NoError(t, err)
	s, options := serve(t)
	s.SetNodes(fullRecord())
	web := httptest.NewUnstartedServer(s)
	web.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, MinVersion: tls.VersionTLS12}
	web.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	web.StartTLS()
	t.Cleanup(web.Close)
	options.BaseURL = web.URL
	_, err = refresh(t, options)
	require.ErrorContains(t, err, "certificate signed by unknown authority")
	options.CAFile = filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, authority.Write(options.CAFile))
	got, err := refresh(t, options)
	require.NoError(t, err)
	require.Len(t, got.Machines, 1)
}

// behindProxy marks the process that TestProxy starts. A process reads the proxy variables
// only once.
const behindProxy = "HOLDFAST_TEST_BEHIND_PROXY"

func TestProxy(t *testing.T) {
	if os.Getenv(behindProxy) != "" {
		got, err := refresh(t, spcapi.Options{
			BaseURL: "http://api.stackpoint.example", TokenFile: writeFile(t, "token", token), Organization: 111,
			Cluster: 23391,
		})
		require.NoError(t, err)
		require.Len(t, got.Machines, 1)
		return
	}
	var proxied atomic.Int32
	s := newServer()
	s.SetNodes(fullRecord())
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host == "api.stackpoint.example" {
			proxied.Add(1)
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), self, "-test.run=^TestProxy$")
	child.Env = append(os.Environ(), behindProxy+"=1", "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL,
		"NO_PROXY=", "no_proxy=")
	out, err := child.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, int32(3), proxied.Load())
}
