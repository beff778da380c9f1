package metricsserver

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

const scraperAddress, floodAddress = "10.1.0.7:40000", "10.1.0.8:40000"

// unentitled is the token of a user who may not get the metrics.
const unentitled = "unentitled"

// A fakeTokenReviewer is an API server that knows two tokens, which are the names of their users.
// It admits one of them.
type fakeTokenReviewer struct {
	admitted string
	isDown   bool
	reviews  int
}

// RoundTrip implements http.RoundTripper.
func (f *fakeTokenReviewer) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.isDown {
		return nil, io.ErrUnexpectedEOF
	}
	f.reviews++
	var answer any
	if strings.Contains(r.URL.Path, "tokenreviews") {
		var who authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&who); err != nil {
			return nil, err
		}
		who.Status.Authenticated = who.Spec.Token == f.admitted || who.Spec.Token == unentitled
		who.Status.User.Username = who.Spec.Token
		answer = who
	} else {
		var access authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&access); err != nil {
			return nil, err
		}
		what := authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
		access.Status.Allowed = access.Spec.User == f.admitted && *access.Spec.NonResourceAttributes == what
		answer = access
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

// flood sends 10 requests with unknown tokens each second, and after every 15 s one scrape, whose
// status it returns.
func flood(handler http.Handler, token, floodFrom string) int {
	for range 15 * 10 {
		<-time.After(100 * time.Millisecond) // by the clock of the bubble
		scrape(handler, "unknown"+strconv.FormatInt(time.Now().UnixNano(), 10), floodFrom)
	}
	return scrape(handler, token, scraperAddress)
}

func scrape(handler http.Handler, token, address string) int {
	return request(handler, Path, "Bearer "+token, address).Code
}

func request(handler http.Handler, path, authorization, address string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	r.Header.Set("Authorization", authorization)
	r.RemoteAddr = address
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func newAuthorizer(t *testing.T, api http.RoundTripper) *Authorizer {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	authorizer, err := NewAuthorizer(&rest.Config{Host: "http://api", Transport: api}, log)
	require.NoError(t, err)
	return authorizer
}

// TestFlood: any client that reaches the port can send unknown tokens. The scraper has been
// admitted before.
func TestFlood(t *testing.T) {
	const ok, unauthorized, unavailable = http.StatusOK, http.StatusUnauthorized, http.StatusServiceUnavailable
	for name, c := range map[string]struct {
		floodFrom string
		// token is the scraper's, and change what happens after five minutes.
		token  string
		change func(*fakeTokenReviewer)
		want   []int // the scrapes from the first that follows
	}{
		"nothing":      {floodAddress, "a", func(*fakeTokenReviewer) {}, []int{ok, ok, ok, ok, ok, ok, ok, ok}},
		"same address": {scraperAddress, "a", func(*fakeTokenReviewer) {}, []int{ok, ok, ok, ok, ok, ok, ok, ok}},
		"token is replaced": {floodAddress, "b", func(f *fakeTokenReviewer) { f.admitted = "b" }, []int{
			ok, ok, ok, ok,
			ok, ok,
		}},
		"token is revoked": {
			floodAddress, "a", func(f *fakeTokenReviewer) { f.admitted = "" },
			[]int{ok, ok, ok, unauthorized, unauthorized, unauthorized},
		},
		"API server is down": {
			floodAddress, "a", func(f *fakeTokenReviewer) { f.isDown = true },
			[]int{ok, ok, ok, unavailable, unavailable, unavailable},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &fakeTokenReviewer{admitted: "a"}
				handler := newAuthorizer(t, api).Require(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				require.Equal(t, ok, scrape(handler, "a", scraperAddress))
				for range 20 {
					require.Equal(t, ok, flood(handler, "a", c.floodFrom))
				}
				require.Less(t, api.reviews, 5*60+100, "requests in five minutes")
				c.change(api)
				var got []int
				for range c.want {
					got = append(got, flood(handler, c.token, c.floodFrom))
				}
				require.Equal(t, c.want, got)
				if api.isDown {
					api.isDown = false
					require.Equal(t, ok, flood(handler, c.token, c.floodFrom), "the API server is back")
				}
			})
		})
	}
}
