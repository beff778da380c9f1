package host

import (
	"fmt"
	"regexp"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

const (
	// largestYAML is how much YAML is taken, in bytes. Configurations and static pods of etcd have a few kibibytes, and a
	// byte of YAML can cost a hundred of memory.
	largestYAML = 64 << 10
	// largestDocument is how much there may be once all aliases are replaced, in bytes and nodes together: what is decoded has
	// a copy for each of them, and 70 KB of text can name 60 KB three thousand times.
	largestDocument = 2 * largestYAML
	// deepestYAML bounds the nesting, in which an anchor that contains itself has no end.
	deepestYAML = 100
)

const (
	errYAMLSize  = constError("it has more than 64 KiB, which is no configuration")
	errYAMLAlias = constError("it is nested too deeply, or too large with its aliases replaced: write out what they stand for")
	errYAMLForm  = constError("it is YAML of another form than is expected there")
)

// decodeYAML reads YAML whose writer may be anybody. Errors name a line at the most and quote nothing: such files hold
// tokens, and errors go into logs and onto the Node.
func decodeYAML(text []byte, into any, opts ...yaml.JSONOpt) error {
	if len(text) > largestYAML {
		return errYAMLSize
	}
	var document yamlv3.Node // the parser's tree, in which an alias takes no more room than its name
	if err := yamlv3.Unmarshal(text, &document); err != nil {
		return notYAML(err)
	}
	if room(&document, largestDocument, deepestYAML) < 0 {
		return errYAMLAlias
	}
	if yaml.Unmarshal(text, into, opts...) != nil {
		return errYAMLForm
	}
	return nil
}

// room is what is left of it when a node is written out, negative if that is too large or too deep.
func room(n *yamlv3.Node, left, depth int) int {
	if left -= 1 + len(n.Value); depth == 0 {
		return -1
	}
	if n.Kind == yamlv3.AliasNode {
		return room(n.Alias, left, depth-1)
	}
	for _, child := range n.Content {
		if left < 0 {
			break
		}
		left = room(child, left, depth-1)
	}
	return left
}

// notYAML takes the line out of a parser's error and leaves the rest, which may quote the text.
func notYAML(err error) error {
	if line := regexp.MustCompile(`\bline (\d+)`).FindStringSubmatch(err.Error()); line != nil {
		return fmt.Errorf("it is not valid YAML, line %s", line[1])
	}
	return constError("it is not valid YAML")
}
