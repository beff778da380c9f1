package protect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestWarnings(t *testing.T) {
	require.Contains(t, Decide(voters(3).View, deletion(0)).Warning, "can lose no further voter until etcd1 (a) has left the member list")
	require.Contains(t, Decide(voters(4).View, deletion(0)).Warning, "can lose no further voter")
	require.Empty(t, Decide(voters(5).View, deletion(0)).Warning)
	require.Empty(t, Decide(voters(3).removed(0).View, deletion(0)).Warning, "nothing is lost")
	full := voters(5).everywhere(2, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"NOSPACE"} })
	require.Contains(t, Decide(full.View, deletion(0)).Warning, "etcd3 (c) has raised the alarm NOSPACE")
}

func goneNode(n *NodeState) { n.UID = "" }

func TestOneVoiceIsNamed(t *testing.T) {
	v := Decide(voters(3).removed(0).silent(0, 1).View, deletion(0))
	require.True(t, v.Allowed)
	require.Contains(t, v.Warning, "rests on the word of node w3 alone")
}

func TestFinal(t *testing.T) {
	for name, c := range map[string]struct {
		world *world
		final bool
	}{
		"allowed, though some are silent":            {voters(3).silent(1, 2), true},
		"refused, and one silent agent might help":   {voters(5).sick(1, 2).silent(2), false},
		"refused, and the silent agent is gone":      {voters(5).sick(1, 2).silent(1).state(1, func(n *NodeState) { n.UID = "" }), true},
		"refused, and no silent agent could help":    {voters(2).silent(1), true},
		"refused by grants, whoever may yet answer":  {voters(3).granted(1).silent(1, 2), true},
		"refused, everybody has answered":            {voters(3).sick(1), true},
		"has left the one list that is there yet":    {voters(3).removed(0).silent(1, 2), false},
		"has left the lists of two":                  {voters(3).removed(0).silent(2), true},
		"has left the list, who is silent is gone":   {voters(3).removed(0).silent(0, 1).state(0, goneNode).state(1, goneNode), true},
		"has left the list of the only one":          {voters(2).removed(0).unbound(0), true},
		"one has not read the alarms, one may yet":   {voters(3).alarmsUnknown(0).silent(1, 2), false},
		"nobody has answered yet":                    {voters(3).silent(0, 1, 2), false},
		"everybody has answered that they are blind": {voters(3).blind(0, 1, 2), true},
		"one is blind, the others silent":            {voters(3).blind(0).silent(1, 2), false},
		"the unread node's agent may yet answer":     {voters(3).blind(0, 2).silent(1).state(1, func(n *NodeState) { *n = NodeState{} }), false},
		"the gone node's agent will not answer":      {voters(3).blind(0, 2).silent(1).state(1, func(n *NodeState) { n.UID = "" }), true},
		"who is corrupt stays corrupt":               {voters(3).inList(0, 2, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"CORRUPT"} }).silent(1), true},
		"who never started will not in time":         {voters(3).everywhere(2, func(m *v1alpha1.MemberStatus) { m.Name = "" }).silent(1), true},
	} {
		t.Run(name, func(t *testing.T) {
			v := Decide(c.world.View, deletion(0))
			require.Equal(t, c.final, v.Final, v.Message)
		})
	}
}
