package testenv

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Admin returns the configuration of a client of group system:masters.
func (s *APIServer) Admin() *rest.Config { return rest.CopyConfig(s.admin) }

// Client returns the administrator's client.
func (s *APIServer) Client() *kubernetes.Clientset { return s.client }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (s *APIServer) Kubeconfig() string { return s.path("admin.kubeconfig") }

// User returns the configuration of a user with a client certificate. A user that no RBAC binding names can do nothing.
func (s *APIServer) User(name string, groups ...string) (*rest.Config, error) {
	pair, err := s.ca.Issue(CertOptions{CommonName: name, Organizations: groups, Client: true})
	if err != nil {
		return nil, err
	}
	config := s.anonymous()
	config.CertData, config.KeyData = pair.Cert, pair.Key
	return config, nil
}

// Kubelet returns the configuration of the kubelet of a node: user system:node:<node>, group system:nodes.
func (s *APIServer) Kubelet(node string) (*rest.Config, error) {
	return s.User("system:node:"+node, "system:nodes")
}

// ServiceAccountConfig returns the configuration of a service account. The token is bound to the Node boundNode, as the
// token of a pod on that node is, so that requests carry authentication.kubernetes.io/node-name, and ceases to be valid
// with that Node. An empty boundNode makes a token that is bound to nothing. It lives for an hour.
func (s *APIServer) ServiceAccountConfig(ctx context.Context, namespace, name, boundNode string) (*rest.Config, error) {
	lifetime := int64(3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime}}
	if boundNode != "" {
		node, err := s.client.CoreV1().Nodes().Get(ctx, boundNode, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading the node to bind a token to: %w", err)
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID,
		}
	}
	made, err := s.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("making a token of service account %s/%s: %w", namespace, name, err)
	}
	config := s.anonymous()
	config.BearerToken = made.Status.Token
	return config, nil
}

// anonymous knows the server and nothing else. Its clients are not throttled: a program that makes its own client from a
// kubeconfig decides for itself.
func (s *APIServer) anonymous() *rest.Config {
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
	if err := writeFile(path, text, 0o600); err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	return nil
}
