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

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

func TestOptionsAreChecked(t *testing.T) {
	good := spcapi.Options{BaseURL: "https://spc.example", TokenFile: "/t", Organization: 1, Cluster: 1}
	for name, tc := range map[string]struct {
		change func(*spcapi.Options)
		want   string
	}{
		"no scheme":             {func(o *spcapi.Options) { o.BaseURL = "spc.example" }, "http(s)://"},
		"another scheme":        {func(o *spcapi.Options) { o.BaseURL = "ftp://spc.example" }, "http(s)://"},
		"no URL at all":         {func(o *spcapi.Options) { o.BaseURL = "" }, "needs a URL such as"},
		"a broken URL":          {func(o *spcapi.Options) { o.BaseURL = "https://" + token + "%zz" }, "cannot be read"},
		"a password in the URL": {func(o *spcapi.Options) { o.BaseURL = "https://x:" + token + "@spc.example" }, "a token belongs in the token file"},
		"a token in the URL":    {func(o *spcapi.Options) { o.BaseURL = "https://spc.example?token=" + token }, "a token belongs in the token file"},
		"a token for the URL":   {func(o *spcapi.Options) { o.BaseURL = token }, "http(s)://"},
		"a token for its file":  {func(o *spcapi.Options) { o.TokenFile = token }, "write it to a file"},
		"no token file":         {func(o *spcapi.Options) { o.TokenFile = "" }, "token file"},
		"no organization":       {func(o *spcapi.Options) { o.Organization = 0 }, "numbers"},
		"no cluster":            {func(o *spcapi.Options) { o.Cluster = -1 }, "numbers"},
		"no such authority":     {func(o *spcapi.Options) { o.CAFile = "/nowhere/ca.crt" }, "certificate authorities"},
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
	good.CAFile = written(t, "ca.crt", "no certificate")
	_, err = spcapi.NewClient(good)
	require.ErrorContains(t, err, "there is no certificate in ")
}

// The Secret of SPC's autoscaler, mounted as it is.
func TestTheSecretOfTheAutoscaler(t *testing.T) {
	s, base := serve(t)
	s.SetNodes(full())
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
	require.NoError(t, err, "what is said outright goes before the Secret")

	for key, value := range map[string]string{"organization-id": "many", "api-url": "https://x:" + token + "@spc.example"} {
		was, err := os.ReadFile(filepath.Join(dir, key))
		require.NoError(t, err)
		put(key, value)
		_, err = refresh(t, options)
		require.ErrorContains(t, err, "key "+key+": ")
		require.NotContains(t, err.Error(), token)
		require.NoError(t, os.Remove(filepath.Join(dir, key)))
		_, err = refresh(t, options)
		require.ErrorContains(t, err, "reading key "+key+" of the SPC Secret")
		put(key, string(was))
	}
}

func TestTheTokensFile(t *testing.T) {
	s, options := serve(t)
	client, err := spcapi.NewClient(options)
	require.NoError(t, err)
	s.Token = "b34e1111"
	_, err = client.Refresh(t.Context())
	require.ErrorContains(t, err, "put a valid token")
	require.NoError(t, os.WriteFile(options.TokenFile, []byte(s.Token), 0o600))
	_, err = client.Refresh(t.Context())
	require.NoError(t, err, "a rotated token is taken up")

	for text, says := range map[string]string{
		"": "is empty", " \n": "is empty", token + "\n" + token: "more than one word", token + "\x00": "more than one word",
		strings.Repeat("x", 2<<20): "larger than a mebibyte",
	} {
		require.NoError(t, os.WriteFile(options.TokenFile, []byte(text), 0o600))
		_, err = client.Refresh(t.Context())
		require.ErrorContains(t, err, says)
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
		says  string
	}{
		"nothing":          {},
		"as in its code":   {env: map[string]string{"SPC_API_BASE_URL": "https://a"}, want: spcapi.Options{BaseURL: "https://a"}},
		"as in its manual": {env: map[string]string{"SPC_BASE_API_URL": "https://b\n"}, want: spcapi.Options{BaseURL: "https://b"}},
		"both": {
			env:  map[string]string{"SPC_API_BASE_URL": "https://a", "SPC_BASE_API_URL": "https://b", "ORGANIZATION_ID": "6", "CLUSTER_ID": "504"},
			want: spcapi.Options{BaseURL: "https://a", Organization: 6, Cluster: 504},
		},
		"flags go first": {
			given: spcapi.Options{BaseURL: "https://c", Organization: 1, Cluster: 2},
			env:   map[string]string{"SPC_API_BASE_URL": "https://a", "ORGANIZATION_ID": "x", "CLUSTER_ID": "504"},
			want:  spcapi.Options{BaseURL: "https://c", Organization: 1, Cluster: 2},
		},
		"no number":    {env: map[string]string{"CLUSTER_ID": "mine"}, says: "the environment variable CLUSTER_ID: it must be a number above 0"},
		"no token, no": {env: map[string]string{"CLUSTER_API_TOKEN": token}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.given.WithEnvironment(func(name string) string { return c.env[name] })
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestAnAuthorityOfOnesOwn(t *testing.T) {
	authority, err := testenv.NewCA("spc")
	require.NoError(t, err)
	pair, err := authority.Issue(testenv.CertOptions{CommonName: "spc", Server: true, Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	serving, err := pair.TLS()
	require.NoError(t, err)
	s, options := serve(t)
	s.SetNodes(full())
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

// behindProxy marks the process that TestProxiesAreHonoured starts: the proxy variables are read once in a process's life.
const behindProxy = "HOLDFAST_TEST_BEHIND_PROXY"

func TestProxiesAreHonoured(t *testing.T) {
	if os.Getenv(behindProxy) != "" {
		got, err := refresh(t, spcapi.Options{
			BaseURL: "http://api.stackpoint.example", TokenFile: written(t, "token", token), Organization: 111, Cluster: 23391,
		})
		require.NoError(t, err)
		require.Len(t, got.Machines, 1)
		return
	}
	var asked atomic.Int32
	s := &spcserver.Server{Token: token, Organization: "111", Cluster: "23391"}
	s.SetNodes(full())
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host == "api.stackpoint.example" {
			asked.Add(1)
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), self, "-test.run=^TestProxiesAreHonoured$")
	child.Env = append(os.Environ(), behindProxy+"=1", "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL, "NO_PROXY=", "no_proxy=")
	out, err := child.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, int32(3), asked.Load())
}
