package words_test

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// A node has the label, but no source identifies its member.
func ExampleMessage() {
	verdict := quorum.RefuseUnattributed(quorum.Request{Node: "w1", UID: "u1", Labelled: true})
	for _, line := range strings.Split(words.Message(verdict), "\n")[1:3] {
		fmt.Println(strings.ReplaceAll(line, "; ", ";\n    "))
	}
	// Output:
	// what to do, safest first:
	//   - check what its agent reports: kubectl describe node w1 (condition EtcdMember);
	//     an agent that runs and finds no etcd removes the label
}
