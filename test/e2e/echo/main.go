// Program echo is what the pods of the end-to-end tests run: it says that it is there, and asks another pod on request.
package main

import (
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

// answer says hello, or with ?ask=HOST:PORT hands on what another pod says.
func answer(w http.ResponseWriter, r *http.Request) {
	other := r.URL.Query().Get("ask")
	if other == "" {
		fmt.Fprintln(w, "hello")
		return
	}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+other+"/", nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response, err := (&http.Client{Timeout: 3 * time.Second}).Do(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = response.Body.Close() }() // it was read to its end, or the copy below has failed
	if _, err := io.Copy(w, response.Body); err != nil {
		log.Print(err)
	}
}
