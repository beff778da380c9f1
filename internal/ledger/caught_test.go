package ledger

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPanicCostsThePartThatHadIt(t *testing.T) {
	err := caught(func() error {
		var nobody []error
		return nobody[len(nobody)]
	})
	require.ErrorContains(t, err, "index out of range [0] with length 0")
	require.ErrorContains(t, err, "caught_test.go", "it says where")
	require.NoError(t, caught(func() error { return nil }))
	ours := errors.New("ours")
	require.ErrorIs(t, caught(func() error { return ours }), ours)
}
