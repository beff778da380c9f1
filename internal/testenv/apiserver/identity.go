package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// Admin returns a client configuration of the group system:masters.
func (s *Server) Admin() *rest.Config { return rest.CopyConfig(s.admin) }

// Client returns the administrator's client.
func (s *Server) Client() *kubernetes.Clientset { return s.client }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (s *Server) Kubeconfig() string { return s.path("admin.kubeconfig") }

// User returns the client configuration of a user with a client certificate. Without an RBAC
// binding, the user has no rights.
func (s *Server) User(name string, groups ...string) (*rest.Config, error) {
	pair, err := s.ca.Issue(pki.CertOptions{CommonName: name, Organizations: groups, Client: true})
	if err != nil {
		return nil, err
	}
	config := s.anonymousConfig()
	config.CertData, config.KeyData = pair.Cert, pair.Key
	return config, nil
}

// Kubelet returns the client configuration of a node's kubelet: user system:node:<node>, group
// system:nodes.
func (s *Server) Kubelet(node string) (*rest.Config, error) {
	return s.User("system:node:"+node, "system:nodes")
}

// ServiceAccountConfig returns the client configuration of a service account, with a token that
// is valid for a day. The token is bound to the Node boundNode, like the token of a pod on
// that node: requests carry authentication.kubernetes.io/node-name, and the token becomes
// invalid when the Node is deleted. If boundNode is empty, the token is not bound.
func (s *Server) ServiceAccountConfig(ctx context.Context, namespace, name, boundNode string) (*rest.Config, error) {
	lifetime := int64(24 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime}}
	if boundNode != "" {
		node, err := s.client.CoreV1().Nodes().Get(ctx, boundNode, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading the node of a bound token: %w", err)
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID,
		}
	}
	made, err := s.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating a token of service account %s/%s: %w", namespace, name, err)
	}
	config := s.anonymousConfig()
	config.BearerToken = made.Status.Token
	return config, nil
}

// anonymousConfig returns a configuration that has the server's address and CA only. Its
// clients are not throttled; a program that builds its client from a kubeconfig sets its own
// limits.
func (s *Server) anonymousConfig() *rest.Config {
	return &rest.Config{
		Host:            "https://" + s.net.IP(apiServerHost) + ":" + apiServerPort,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.PEM()},
		QPS:             -1,
	}
}

// WriteKubeconfig writes a configuration as a kubeconfig for a child process.
func WriteKubeconfig(path string, config *rest.Config) error {
	const name = "testenv"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	text, err := clientcmd.Write(*file)
	if err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	if err := pki.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	return nil
}

// auditPolicy logs the requests of service accounts only.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [system:serviceaccounts]
- level: None
`

// A Request is one request of a service account, as the API server's audit log records it.
type Request struct {
	ID string
	// User is the service account's name. Node is the Node that the token is bound to, if any.
	User, Node string
	// Verb is the verb in RBAC: get, list, watch, patch.
	Verb                        string
	Resource, Subresource, Name string
	UserAgent                   string
	// Code is the HTTP status of the response.
	Code int
	// Answered is the time at which the API server had written the whole response. For a watch,
	// it is the time at which the response began.
	Answered time.Time
}

// Requests returns the requests of a service account in the order of the responses. A watch
// counts once, at its beginning.
func (s *Server) Requests(user string) ([]Request, error) {
	data, err := os.ReadFile(s.path("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1] // the last line may be incomplete
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
