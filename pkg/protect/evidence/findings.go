package evidence

// Findings are what the host shows about etcd, before its servers are queried.
type Findings struct {
	Found []Server `json:"found"`
	// Data are the data of members that no server of Found has.
	Data []Data `json:"data,omitempty"`
	// Searching means that the first search of the local disks has not ended.
	Searching bool `json:"searching,omitempty"`
	// Unknown are the places that could not be read, each with the reason. They may hold etcd.
	Unknown []string `json:"unknown,omitempty"`
	// Notes describe processes and units that resemble an etcd server, and sources that the scan did
	// not use.
	Notes []string `json:"notes,omitempty"`
}

// Data is the data of a member in a directory that no server has open, and that neither a unit nor
// a static pod nor the layout of a distribution names. Its log tells which member it is. Only the
// lists of its cluster tell whether it is one.
type Data struct {
	// Dir is the host's path of the data directory, or that of the log if it is in another one.
	Dir string    `json:"dir"`
	Ref MemberRef `json:"ref"`
	// Recent means that the log was written within the last ten minutes. The member may have joined
	// since the lists of its cluster were read.
	Recent bool `json:"recent,omitempty"`
	// Starter is what may start a server on it: a unit or service of etcd whose files do not tell
	// where its data is. It is usually empty.
	Starter string `json:"starter,omitempty"`
}
