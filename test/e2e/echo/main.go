// Program echo runs in the pods of the end-to-end tests. It responds to requests, and forwards
// requests to other pods.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"
)

func main() {
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(answer), ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// answer responds with "hello". With ?ask=HOST:PORT it returns the response of another pod, and
// with ?post=URL the response to the body of the request.
func answer(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case query.Has("ask"):
		pass(w, r, http.MethodGet, "http://"+query.Get("ask")+"/", nil)
	case query.Has("post"):
		pass(w, r, http.MethodPost, query.Get("post"), r.Body)
	default:
		fmt.Fprintln(w, "hello")
	}
}

func pass(w http.ResponseWriter, r *http.Request, method, url string, body io.Reader) {
	request, err := http.NewRequestWithContext(r.Context(), method, url, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request.Header.Set("Content-Type", "application/json")
	// A sender of forged reviews does not verify certificates.
	insecure := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see above
	client := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{TLSClientConfig: insecure}}
	response, err := client.Do(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = response.Body.Close() }() // its body was read, or io.Copy failed
	if _, err := io.Copy(w, response.Body); err != nil {
		log.Print(err)
	}
}
