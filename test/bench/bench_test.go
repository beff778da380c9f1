package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestQuantiles(t *testing.T) {
	var hundred durations
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Millisecond)
	}
	require.Equal(t, 51*time.Millisecond, hundred.median())
	require.Equal(t, 100*time.Millisecond, hundred.p99())
	require.Equal(t, 100*time.Millisecond, hundred.quantile(1))
	require.Equal(t, 7*time.Millisecond, durations{7 * time.Millisecond}.p99())
	require.Zero(t, durations{}.median())
	require.InDelta(t, 3, durations{6, 9, 12}.ratioTo(durations{1, 3, 7}), 0.01)
}

func TestVerdictSample(t *testing.T) {
	version := func(nonce string, ledger int64) *v1alpha1.EtcdCluster {
		return &v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{Nonce: nonce, Ledger: ledger}}
	}
	answer := func(nonce string) *v1alpha1.EtcdObservation {
		return &v1alpha1.EtcdObservation{Observation: v1alpha1.Observation{Nonce: nonce}}
	}
	before, asked := version("old", 3), version("new", 3)
	var j verdictSample
	j.record(0, before, before)
	j.recordAnswer(1, before, before, answer("old"))
	j.record(2, before, asked)
	j.recordAnswer(3, asked, before, answer("old"))
	j.recordAnswer(4, asked, before, answer("new"))
	j.recordAnswer(5, asked, before, answer("new"))
	j.record(6, before, version("new", 4))
	require.Equal(t, verdictSample{nonceAt: 2, observedAt: 4, grantedAt: 6}, j)
}
