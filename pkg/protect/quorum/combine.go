package quorum

import "strings"

// Combine returns the Decision over all clusters. One refusal refuses. The Decision then
// contains the refusals only.
func Combine(verdicts []Verdict) Decision {
	decision := Decision{Allowed: len(verdicts) > 0, Verdicts: verdicts}
	for _, v := range verdicts {
		decision.Allowed = decision.Allowed && v.Allowed
	}
	var messages []string
	for _, v := range verdicts {
		if v.Allowed != decision.Allowed {
			continue
		}
		if decision.Reason == "" {
			decision.Reason = v.Reason
		}
		if v.Message != "" {
			messages = append(messages, v.Message)
		}
		if v.Warning != "" {
			decision.Warnings = append(decision.Warnings, v.Warning)
		}
	}
	decision.Message = strings.Join(messages, "\n")
	return decision
}
