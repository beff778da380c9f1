package main

// usage is the help of the program. A test checks that it explains every flag.
const usage = `Holdfast's webhook refuses to delete a Kubernetes node if an etcd cluster would lose quorum without
it. Run two replicas. Both review deletions and drains. One of them is the leader and does the background work.

  holdfast-webhook [flags]        work until SIGTERM; the command of the Deployment
  holdfast-webhook --version      print the version
  holdfast-webhook --help         print this help

Exit codes: 0 success, 1 failure, 2 usage error.

Cluster
  --kubeconfig=FILE               kubeconfig for the API server. If empty, the webhook uses the service account of
                                  its pod
  --namespace=NAME                namespace of Holdfast: of its Service, Secret, Lease and SPC inventory
                                  (default holdfast-system). The shipped policies work only with the default
  --lease-duration=DURATION       how long the other replica waits for a leader that does not renew its Lease
                                  (default 15s)

Reviewing deletions
  --observer-wait=DURATION        how long a review waits for a further answer of an agent after the last one
                                  (default 3s), twice as long for the first one, and six seconds in all
  --min-remaining-tolerance=N     how many more voters an etcd cluster must be able to lose after a deletion
                                  (default 0: the cluster only keeps quorum)
  --max-etcd-clusters=N           how many EtcdClusters may exist before the leader creates no more from announcements
                                  (default 16)
  --doomed-taint=KEY              count members on nodes with this taint as lost, as those on nodes that an autoscaler
                                  is about to delete. Repeatable. A key that ends with / matches all keys that begin
                                  with it
  --away-mark=KEY                 count members on nodes with this taint, annotation or label as not healthy, as those
                                  on nodes that kured reboots. Repeatable. A key that ends with / matches as above.
                                  condition:TYPE is a condition of the Node with the status True
  --zone-label=KEY                label with the zone of a node, for the metrics of zones and for the plugin (default
                                  topology.kubernetes.io/zone)
  --cluster-api=BOOL              keep Cluster API from ending the machine of an etcd node that may not be deleted, by a
                                  hook on its Machine (default false). Cluster API must run in this cluster. The
                                  component cluster-api sets it
  --karpenter=BOOL                keep the grant of a node as long as Karpenter ends its machine without a deletion of
                                  its Node (default false). The component karpenter-nodeclaims sets it

Drains
  --guard-drains=BOOL             keep a guard pod on each node with etcd (default true). A drain must evict it, and
                                  Holdfast reviews that eviction like the deletion of the Node. With false, the webhook
                                  removes the guard pods, and drains are not reviewed

Watching holds
  --agent-missing-after=DURATION  how long a node may be held without an agent that has read its host in this boot
                                  (default 2m)
  --stuck-hold-after=DURATION     how long a hold may last (default 10m; cluster-autoscaler waits 15m for a node)
  --on-stuck-hold=keep|release    what the leader does with a hold that lasts longer (default keep). With release, it
                                  releases the node although no agent has reported a working network, or an agent
                                  reports what is missing

Serving the API server
  --listen=ADDRESS                address for the requests of the API server (default :9443)
  --tls-cert-file=FILE            certificate with its chain that another program issues, such as cert-manager
  --tls-key-file=FILE             its key; set both files or none. The webhook waits for the files, reads changed files
                                  again, and writes neither the Secret nor the ValidatingWebhookConfiguration. That
                                  program must keep the caBundle of all webhooks in it
  --client-ca-file=FILE           require a client certificate of this authority. The API server sends one if its
                                  --admission-control-config-file names a kubeconfig for webhooks. Without this flag,
                                  use a NetworkPolicy to allow only the API server: a forged request can make
                                  Holdfast refuse more deletions than necessary, but never allow more
  --client-name=NAME              name that the client certificate must have, as common name or DNS name

StackPointCloud: a token, a URL and two numbers, each from its flag or from the Secret
  --spc-secret-dir=DIR            directory where the Secret of SPC's autoscaler is mounted, with api-token, api-url,
                                  organization-id and cluster-id. The webhook reads it for every refresh
  --spc-token-file=FILE           file with a token of an organization owner. The webhook reads it for every refresh
  --spc-url=URL                   URL of the SPC API, such as https://api.stackpoint.io
  --spc-organization=N            number of the organization
  --spc-cluster=N                 number of the cluster
  --spc-ca-file=FILE              more certificate authorities for the SPC API, in addition to the public ones

Running
  --metrics-listen=ADDRESS        address for /metrics (default :8080). If empty, the webhook does not serve it
  --metrics-secure=BOOL           serve /metrics over HTTPS, to clients with a token of a user who may get the URL
                                  /metrics (default false). The webhook creates the certificate at every start. The
                                  component metrics sets this flag with the permissions that it needs
  --health-listen=ADDRESS         address for /healthz and /readyz (default :8081). If empty, the webhook does not
                                  serve them
  --log-level=LEVEL               debug, info, warn or error (default info)
  --log-format=json|text          format of the log (default json)

With a token, the environment variables SPC_API_BASE_URL (or SPC_BASE_API_URL), ORGANIZATION_ID and CLUSTER_ID
replace missing flags, as in SPC's autoscaler. The webhook reads a token from files only. It uses the proxy in
HTTPS_PROXY and NO_PROXY, and reads no other environment variables of its own.
`
