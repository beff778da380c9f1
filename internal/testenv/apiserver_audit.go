package testenv

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// auditPolicy logs what the programs of the cluster ask for, and nothing else.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [system:serviceaccounts]
- level: None
`

// Request is one request that a service account made, as the API server's audit log has it.
type Request struct {
	ID string
	// User is the service account's name, Node the Node that its token is bound to, if any.
	User, Node string
	// Verb is that of RBAC: get, list, watch, patch.
	Verb                        string
	Resource, Subresource, Name string
	UserAgent                   string
	// Code is the status of the answer.
	Code int
	// Answered is when the API server had given the whole answer; for a watch, when it began to.
	Answered time.Time
}

// Requests returns what the service account has asked the API server for, in the order of the answers. A watch counts
// once, from its beginning.
func (s *APIServer) Requests(user string) ([]Request, error) {
	data, err := os.ReadFile(s.path("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1] // the last line may be half written
	var found []Request
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var e struct {
			AuditID, Verb, UserAgent string
			User                     struct {
				Username string
				Extra    map[string][]string
			}
			ObjectRef struct{ Resource, Subresource, Name string }
			Response  struct{ Code int } `json:"responseStatus"`
			Stage     time.Time          `json:"stageTimestamp"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		r := Request{
			ID: e.AuditID, User: e.User.Username, Verb: e.Verb, UserAgent: e.UserAgent, Code: e.Response.Code,
			Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource, Name: e.ObjectRef.Name,
			Answered: e.Stage,
		}
		if nodes := e.User.Extra["authentication.kubernetes.io/node-name"]; len(nodes) > 0 {
			r.Node = nodes[0]
		}
		if r.User == user && !slices.ContainsFunc(found, func(f Request) bool { return f.ID == r.ID }) {
			found = append(found, r)
		}
	}
	return found, nil
}
