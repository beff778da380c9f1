package spcapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const token = "a12f0000"

func serve(t *testing.T) (*spcserver.Server, spcapi.Options) {
	t.Helper()
	s := &spcserver.Server{Token: token, Organization: "111", Cluster: "23391"}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	return s, spcapi.Options{BaseURL: web.URL, TokenFile: file, Organization: 111, Cluster: 23391}
}

func TestInventory(t *testing.T) {
	s, options := serve(t)
	s.SetNodes(spc.Record{PK: 1, InstanceID: "a", State: "running"}, spc.Record{PK: 2, InstanceID: "b", State: "deleted"})
	for name, base := range map[string]string{"as it is": options.BaseURL, "with a slash": options.BaseURL + "/"} {
		t.Run(name, func(t *testing.T) {
			o := options
			o.BaseURL = base
			client, err := spcapi.NewClient(o)
			require.NoError(t, err)
			inventory, err := client.Inventory(t.Context())
			require.NoError(t, err)
			require.Equal(t, &spc.Inventory{
				Organization: 111, Cluster: 23391, Records: []spc.Record{{PK: 1, InstanceID: "a", State: "running"}},
			}, inventory)
		})
	}
}

func TestInventoryOfAnEmptyClusterIsEmptyAndNotNil(t *testing.T) {
	_, options := serve(t)
	client, err := spcapi.NewClient(options)
	require.NoError(t, err)
	inventory, err := client.Inventory(t.Context())
	require.NoError(t, err)
	require.NotNil(t, inventory.Records)
	require.Empty(t, inventory.Records)
}

func TestARotatedTokenIsTakenUp(t *testing.T) {
	s, options := serve(t)
	client, err := spcapi.NewClient(options)
	require.NoError(t, err)
	s.Token = "b34e1111"
	_, err = client.Inventory(t.Context())
	require.ErrorContains(t, err, "put a valid token")
	require.NoError(t, os.WriteFile(options.TokenFile, []byte(s.Token), 0o600))
	_, err = client.Inventory(t.Context())
	require.NoError(t, err)
}

func TestAnswersThatAreNoListAreErrors(t *testing.T) {
	body := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "90")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, tc := range map[string]struct {
		failure http.HandlerFunc
		want    string
	}{
		"403":       {body(403, `{"detail":"You do not have permission to perform this action."}`), "must belong to an owner"},
		"404":       {body(404, `{"detail":"Not found."}`), "check the organization and cluster numbers"},
		"503":       {body(503, `<html>busy</html>`), "503 Service Unavailable"},
		"HTML":      {body(200, `<html>welcome</html>`), "not a list of nodes"},
		"an object": {body(200, `{"pk":1}`), "not a list of nodes"},
		"null":      {body(200, `null`), "null"},
		"truncated": {body(200, `[{"pk":1,`), "not a list of nodes"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "[")
		}, "reading the SPC API's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			s, options := serve(t)
			s.Fail(tc.failure)
			client, err := spcapi.NewClient(options)
			require.NoError(t, err)
			_, err = client.Inventory(t.Context())
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), token)
			var status *spcapi.StatusError
			if strings.HasPrefix(name, "5") || strings.HasPrefix(name, "4") {
				require.ErrorAs(t, err, &status)
				require.Equal(t, 90*time.Second, status.RetryAfter)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := spcapi.Options{BaseURL: "https://spc.example", TokenFile: "/t", Organization: 1, Cluster: 1}
	for name, tc := range map[string]struct {
		change func(*spcapi.Options)
		want   string
	}{
		"no scheme":       {func(o *spcapi.Options) { o.BaseURL = "spc.example" }, "http(s)://"},
		"no token file":   {func(o *spcapi.Options) { o.TokenFile = "" }, "token file"},
		"no organization": {func(o *spcapi.Options) { o.Organization = 0 }, "numbers"},
		"no cluster":      {func(o *spcapi.Options) { o.Cluster = -1 }, "numbers"},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			tc.change(&o)
			_, err := spcapi.NewClient(o)
			require.ErrorContains(t, err, tc.want)
		})
	}
	_, err := spcapi.NewClient(good)
	require.NoError(t, err)
}
