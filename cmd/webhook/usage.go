package main

// usage explains the whole program; a flag that it does not explain fails a test.
func usage() string {
	return `Holdfast's webhook refuses to delete a Kubernetes node whose loss would cost an etcd cluster its quorum. Run two
replicas: each judges deletions, and one of them leads and does the slow work.

  holdfast-webhook [flags]        work until SIGTERM; what the Deployment runs
  holdfast-webhook --version      print the version
  holdfast-webhook --help         print this

Exit status: 0 done, 1 failed, 2 a mistake on the command line.

The cluster
  --kubeconfig=FILE               how to reach the API server; empty takes the pod's service account
  --namespace=NAME                where Holdfast lives: the Service, the Secret, the Lease and the SPC inventory
                                  (default holdfast-system). The shipped policies know no other
  --leader-elect=BOOL             lead only with the Lease holdfast-webhook (default true); false leads at once
  --lease-duration=DURATION       how long a leader that cannot reach the API server stays one (default 15s)

Judging deletions
  --observer-wait=DURATION        how long a verdict waits for the agents at most (default 3s; the API server waits 10s)
  --min-remaining-tolerance=N     how many more voters must be expendable after a deletion (default 0: quorum is enough)

Watching holds
  --agent-missing-after=DURATION  how long a new node may be held before its agent has looked at it (default 2m)
  --stuck-hold-after=DURATION     how long a hold may last (default 10m: cluster-autoscaler gives a node up after 15m)
  --on-stuck-hold=keep|release    what becomes of one that lasts longer (default keep). release opens the node although
                                  nobody has seen its network work, or an agent says what is missing

Being called by the API server
  --listen=ADDRESS                where the API server calls (default :9443)
  --service=NAME                  the Service by which it calls; the certificate is for its names (default holdfast-webhook)
  --webhook-configuration=NAME    the ValidatingWebhookConfiguration that is to trust the certificate (default holdfast)
  --tls-secret=NAME               the Secret that holds the certificate and its authority; made if it is not there
                                  (default holdfast-webhook-tls)
  --ca-validity=DURATION          how long the certificate authority lasts (default 43800h, 5 years)
  --cert-validity=DURATION        how long the serving certificate lasts (default 2160h, 90 days); at most half of that
  --cert-settle=DURATION          how long every API server is given to read a new certificate authority before a
                                  certificate of it is served (default 10m); at most a third of --cert-validity
  --client-ca-file=FILE           demand a client certificate of this authority from whoever calls. The API server sends
                                  one if its --admission-control-config-file names a kubeconfig for webhooks. Without
                                  this flag a NetworkPolicy must keep others from the port: a forged question can make
                                  Holdfast refuse more than it should, never allow more
  --client-name=NAME              the name that the client certificate must carry, as common name or DNS name

StackPointCloud: a token, a URL and two numbers, each by its flag or from the Secret
  --spc-secret-dir=DIR            where the Secret of SPC's autoscaler is mounted: api-token, api-url, organization-id and
                                  cluster-id, read anew for every refresh
  --spc-token-file=FILE           holds a token of an organization owner; read anew for every refresh
  --spc-url=URL                   the SPC API, such as https://api.stackpoint.io
  --spc-organization=N            the number of the organization
  --spc-cluster=N                 the number of the cluster
  --spc-ca-file=FILE              certificate authorities to trust for the SPC API beside the public ones
  --spc-inventory=NAME            the ConfigMap in --namespace that the agents read (default holdfast-spc-inventory);
                                  NAME-status tells people how it stands

Running
  --metrics-listen=ADDRESS        where /metrics answers (default :8080); empty for nowhere
  --health-listen=ADDRESS         where /healthz and /readyz answer (default :8081); empty for nowhere
  --log-level=LEVEL               debug, info, warn or error (default info)
  --log-format=json|text          (default json)

With a token, SPC_API_BASE_URL (or SPC_BASE_API_URL), ORGANIZATION_ID and CLUSTER_ID stand in for flags that are not given,
as SPC's autoscaler reads them; a token is taken from files only. A proxy is taken from HTTPS_PROXY and NO_PROXY. The
webhook reads no other environment variables of its own.
`
}
