package storm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The judge of the storm is judged first: it must see every wrong that the storm is for, and no other.
func TestHistoryIsJudged(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	m := func(n uint64) memberID { return memberID{"a", n} }
	del := func(from, to int, ids ...uint64) deletion {
		d := deletion{span: span{at(from), at(to)}, node: "n"}
		for _, id := range ids {
			d.members = append(d.members, m(id))
		}
		return d
	}
	ids := func(numbers ...uint64) (found []memberID) {
		for _, n := range numbers {
			found = append(found, m(n))
		}
		return found
	}
	for name, test := range map[string]struct {
		voters    int
		lives     map[uint64][]span // instead of all the time
		changes   []voters
		deletions []deletion
		wrong     bool
	}{
		"one of three":                              {voters: 3, deletions: []deletion{del(1, 2, 1)}},
		"two of three, one after the other":         {voters: 3, deletions: []deletion{del(1, 2, 1), del(3, 4, 2)}, wrong: true},
		"two of three at once":                      {voters: 3, deletions: []deletion{del(1, 4, 1), del(2, 3, 2)}, wrong: true},
		"two of five at once":                       {voters: 5, deletions: []deletion{del(1, 4, 1), del(2, 3, 2)}},
		"three of five, two at once":                {voters: 5, deletions: []deletion{del(1, 4, 1), del(2, 3, 2), del(5, 6, 3)}, wrong: true},
		"the same again":                            {voters: 3, deletions: []deletion{del(1, 2, 1), del(3, 4, 1)}},
		"with another dead":                         {voters: 3, lives: map[uint64][]span{3: nil}, deletions: []deletion{del(1, 2, 1)}, wrong: true},
		"the dead one":                              {voters: 3, lives: map[uint64][]span{3: nil}, deletions: []deletion{del(1, 2, 3)}},
		"another died before the request":           {voters: 3, lives: map[uint64][]span{3: {{at(0), at(1)}}}, deletions: []deletion{del(2, 4, 1)}, wrong: true},
		"another died meanwhile":                    {voters: 3, lives: map[uint64][]span{3: {{at(0), at(3)}}}, deletions: []deletion{del(2, 4, 1)}},
		"another came back meanwhile":               {voters: 3, lives: map[uint64][]span{3: {{at(3), time.Time{}}}}, deletions: []deletion{del(2, 4, 1)}},
		"another came back too late":                {voters: 3, lives: map[uint64][]span{3: {{at(5), time.Time{}}}}, deletions: []deletion{del(2, 4, 1)}, wrong: true},
		"one judged with what died before the next": {voters: 5, lives: map[uint64][]span{3: {{at(0), at(2)}}}, deletions: []deletion{del(1, 6, 1), del(3, 5, 2)}},
		"none can have been judged with it":         {voters: 5, lives: map[uint64][]span{3: {{at(0), at(1)}}}, deletions: []deletion{del(2, 6, 1), del(3, 5, 2)}, wrong: true},
		"the lost one was replaced":                 {voters: 3, changes: []voters{{span{from: at(3)}, ids(2, 3)}, {span{from: at(5)}, ids(2, 3, 4)}}, deletions: []deletion{del(1, 2, 1), del(6, 7, 2)}},
		"the lost one was removed, none came":       {voters: 3, changes: []voters{{span{from: at(3)}, ids(2, 3)}}, deletions: []deletion{del(1, 2, 1), del(6, 7, 2)}, wrong: true},
		"removed meanwhile":                         {voters: 3, lives: map[uint64][]span{3: nil}, changes: []voters{{span{from: at(3)}, ids(2, 3)}}, deletions: []deletion{del(2, 4, 1)}},
		"a learner":                                 {voters: 3, deletions: []deletion{del(1, 2, 9), del(3, 4, 1)}},
		"one machine with two members":              {voters: 3, deletions: []deletion{del(1, 2, 1, 2)}, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory()
			var first []memberID
			for n := range uint64(test.voters) {
				first = append(first, m(n+1))
				h.lives[m(n+1)] = []span{{from: at(0)}}
			}
			for n, lives := range test.lives {
				h.lives[m(n)] = lives
			}
			h.lives[m(4)] = []span{{from: at(0)}}
			h.voters["a"] = []voters{{span{from: at(0)}, first}}
			for _, change := range test.changes {
				h.voters["a"][len(h.voters["a"])-1].to = change.from
				h.voters["a"] = append(h.voters["a"], change)
			}
			h.deletions = test.deletions
			err := h.judge()
			if test.wrong {
				require.ErrorContains(t, err, "quorum is")
			} else {
				require.NoError(t, err)
			}
		})
	}
}
