package report_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/hostiletext"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// FuzzPrintableReports checks that no report for people contains what a terminal obeys.
func FuzzPrintableReports(f *testing.F) {
	hostiletext.Fuzz(f, func(t *testing.T, text string) {
		for name, c := range map[string]*quorumtest.Cluster{
			"healthy": quorumtest.Voters(3), "silent": quorumtest.Voters(3).Silent(0, 1, 2),
			"granted": quorumtest.Voters(3).Granted(1), "unhealthy": quorumtest.Voters(5).Unhealthy(0, 1),
		} {
			s := stateOf(c, 3)
			s.Nodes = append(s.Nodes, held(quorumtest.Noon().Add(-time.Hour)))
			hostiletext.Spread(&s, text)
			hostiletext.RequirePrintable(t, name, textsOf(t, s, text)...)
		}
	})
}

// textsOf returns the texts of all reports about a state.
func textsOf(t *testing.T, s report.State, answer string) (all []string) {
	t.Helper()
	status := report.NewStatus(s)
	for _, w := range status.Warnings {
		all = append(all, w.Text)
	}
	for _, h := range status.Holds {
		all = append(all, h.Reason, h.Message)
	}
	for _, c := range status.Clusters {
		all = append(all, c.Message)
		for _, g := range c.Grants {
			for _, d := range g.Doors {
				all = append(all, d.User)
			}
		}
	}
	all = append(append(all, whatIfTexts(s)...), planTexts(t, s)...)
	for i := range s.Nodes {
		page, _ := report.NewPage(s, s.Nodes[i].Name, report.Removal{Answer: quorum.Unknown, Message: "x" + answer})
		all = append(all, strings.Split(page.Text(), "\n")...)
	}
	return all
}

// whatIfTexts returns the texts of the answers about each Node and each zone.
func whatIfTexts(s report.State) (all []string) {
	for i := range s.Nodes {
		nodes, err := report.NewWhatIf(s, []string{s.Nodes[i].Name})
		zone, zoneErr := report.NewZoneWhatIf(s, s.Nodes[i].Labels[corev1.LabelTopologyZone])
		for _, err := range []error{err, zoneErr} {
			if err != nil {
				all = append(all, err.Error())
			}
		}
		for _, w := range []report.WhatIf{nodes, zone} {
			all = append(all, w.Notes...)
			for _, c := range w.Clusters {
				all = append(all, strings.Split(c.Message, "\n")...)
			}
			for _, u := range w.Unknown {
				all = append(all, u.Message)
			}
		}
	}
	return all
}

// planTexts returns the texts of a plan for all Nodes.
func planTexts(t *testing.T, s report.State) (all []string) {
	t.Helper()
	var names []string
	for i := range s.Nodes {
		names = append(names, s.Nodes[i].Name)
	}
	plan, err := report.NewPlan(s, names, true)
	require.NoError(t, err)
	for _, step := range plan.Steps {
		all = append(append(append(all, step.Then...), step.Warnings...), strings.Split(step.Message, "\n")...)
	}
	for _, stopped := range plan.Stopped {
		all = append(all, strings.Split(stopped.Message, "\n")...)
	}
	return all
}
