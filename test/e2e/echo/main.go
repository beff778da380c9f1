// Program echo is what the pods of the end-to-end tests run: it says that it is there, and asks another pod on request.
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

// answer says hello; with ?ask=HOST:PORT it hands on what another pod says, with ?post=URL what is answered there to the
// body of the request.
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
	// Whoever forges a question does not ask whose certificate it is.
	client := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // see above
	response, err := client.Do(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = response.Body.Close() }() // it was read to its end, or the copy below has failed
	if _, err := io.Copy(w, response.Body); err != nil {
		log.Print(err)
	}
}
