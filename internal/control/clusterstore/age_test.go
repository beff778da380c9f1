package clusterstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWatchAge: a watch that has delivered nothing for two minutes may hang.
func TestWatchAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		version := ""
		age := newWatchAge(func() string { return version })
		require.False(t, age.isCurrent(), "it has not listed yet")
		version = "7"
		require.True(t, age.isCurrent())
		<-time.After(maxWatchAge - time.Second)
		require.True(t, age.isCurrent())
		<-time.After(time.Second)
		require.False(t, age.isCurrent())
		version = "8"
		require.True(t, age.isCurrent(), "a bookmark")

		<-time.After(time.Hour)
		version = "9"
		require.False(t, age.isCurrent(), "it may have been delivered an hour ago")
	})
}

func TestCurrentOr(t *testing.T) {
	cached := func() (string, error) { return "cached", nil }
	live := func(context.Context) (string, error) { return "live", nil }
	fails := func(ctx context.Context) (string, error) {
		_, isSet := ctx.Deadline()
		require.True(t, isSet, "a fail-open entry has two seconds")
		return "", errors.New("no answer")
	}
	version := "7"
	age := newWatchAge(func() string { return version })
	for _, test := range []struct {
		live  func(context.Context) (string, error)
		moved time.Duration
		want  string
	}{{live, 0, "cached"}, {live, maxWatchAge, "live"}, {fails, maxWatchAge, "cached"}} {
		age.isCurrent()
		age.moved = time.Now().Add(-test.moved)
		got, err := currentOr(t.Context(), age.isCurrent(), test.live, cached)
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}
}
