package evidence

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
