package history

import "math/rand/v2"

// choices is the one stream that everything which is not determined is taken from. The first of several options is the
// harmless one, so that a stream that has run out ends a history calmly.
type choices struct {
	next  func(n int) int
	taken []int
}

func fromSeed(seed uint64) *choices {
	random := rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15))
	return &choices{next: random.IntN}
}

// replay takes what was taken before, and nothing but first options after its end.
func replay(taken []int) *choices {
	i := -1
	return &choices{next: func(n int) int {
		if i++; i >= len(taken) {
			return 0
		}
		return taken[i] % n
	}}
}

// fromBytes makes a fuzzer's input a stream.
func fromBytes(data []byte) *choices {
	taken := make([]int, len(data))
	for i, b := range data {
		taken[i] = int(b)
	}
	return replay(taken)
}

// of picks one of n options.
func (c *choices) of(n int) int {
	if n <= 1 {
		return 0
	}
	i := c.next(n)
	c.taken = append(c.taken, i)
	return i
}

// chance is true in one of n cases.
func (c *choices) chance(n int) bool { return c.of(n) == n-1 }
