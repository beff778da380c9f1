package testenv

import (
	"strings"
)

// StartControllers starts a kube-controller-manager with the named controllers, "node-lifecycle-controller" for instance,
// and no other. It ends with the API server. With "node-ipam-controller" Nodes get a podCIDR out of 10.244.0.0/16.
func (s *APIServer) StartControllers(controllers ...string) (*Process, error) {
	binary, err := Binary("kube-controller-manager")
	if err != nil {
		return nil, err
	}
	process, err := StartProcess(ProcessOptions{
		Name: "kube-controller-manager", Path: binary, Dir: s.opts.Dir, LogFile: s.path("kube-controller-manager.log"),
		Args: []string{
			"--controllers=" + strings.Join(controllers, ","),
			"--kubeconfig=" + s.Kubeconfig(),
			"--leader-elect=false",
			"--secure-port=0",
			"--allocate-node-cidrs",
			"--cluster-cidr=10.244.0.0/16",
			"--service-account-private-key-file=" + s.path("sa.key"),
			"--root-ca-file=" + s.path("ca.crt"),
		},
	})
	if err != nil {
		return nil, err
	}
	s.others = append(s.others, process)
	return process, nil
}
