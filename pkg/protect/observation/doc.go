// Package observation reads what the agents report about etcd: the annotations on their Nodes, and
// their observations in the status of an EtcdCluster.
//
// ParseAnnouncement and ParseUnverified parse the annotations of a Node, FormatAnnouncement and
// FormatUnverified produce them. Accepted returns the observations that a decision may use, Ignored
// lists the others with the reason. NodesAt finds the Nodes at the addresses of a member.
//
// All functions are pure. They trust an observation only if its Node is bound to a member of the
// cluster, because any agent can publish an observation of any cluster.
package observation
