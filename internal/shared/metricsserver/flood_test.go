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

// A fakeTokenReviewer is an API server that admits some tokens.
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
		who.Status.Authenticated = who.Spec.Token == f.admitted
		answer = who
	} else {
		answer = authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}
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

// flood sends 50 requests with unknown tokens each second, and after every 15 s one scrape, whose
// status it returns.
func flood(handler http.Handler, token, floodFrom string) int {
	for range 15 * 50 {
		<-time.After(20 * time.Millisecond) // by the clock of the bubble
		request(handler, "unknown"+strconv.FormatInt(time.Now().UnixNano(), 10), floodFrom)
	}
	return request(handler, token, scraperAddress)
}

func request(handler http.Handler, token, address string) int {
	r := httptest.NewRequest(http.MethodGet, Path, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	r.RemoteAddr = address
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code
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
				authorizer, err := NewAuthorizer(&rest.Config{Host: "http://api", Transport: api}, slog.New(slog.DiscardHandler))
				require.NoError(t, err)
				handler := authorizer.Require(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				require.Equal(t, ok, request(handler, "a", scraperAddress))
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
