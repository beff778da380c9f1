package readiness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseRecord(t *testing.T) {
	since := time.Date(2026, 8, 1, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		value string
		want  Record
		err   string
	}{
		"all fields": {
			`{"state":"held","bootID":"b1","since":"2026-08-01T10:00:00Z","reason":"NewNode","taint":"example.com/wait"}`,
			Record{State: Held, BootID: "b1", Since: since, Reason: NewNode, Taint: "example.com/wait"},
			"",
		},
		"as the born-held policy writes it, without a clock": {`{"state":"held","bootID":"b1","reason":"NewNode"}`, Record{State: Held, BootID: "b1", Reason: NewNode}, ""},
		"another zone":                  {`{"state":"released","since":"2026-08-01T12:00:00.7+02:00"}`, Record{State: Released, Since: since}, ""},
		"a field of a later version":    {`{"state":"overridden","by":"someone"}`, Record{State: Overridden}, ""},
		"empty":                         {``, Record{}, "unexpected end"},
		"null":                          {`null`, Record{}, "state"},
		"a word":                        {`held`, Record{}, "invalid character"},
		"a list":                        {`["held"]`, Record{}, "cannot unmarshal"},
		"no state":                      {`{"bootID":"b1"}`, Record{}, "state"},
		"a state of a later version":    {`{"state":"waiting"}`, Record{}, "waiting"},
		"something after the end":       {`{"state":"held"} x`, Record{}, "after top-level value"},
		"a boot ID that is a number":    {`{"state":"held","bootID":7}`, Record{}, "cannot unmarshal"},
		"a time that is none":           {`{"state":"held","since":"yesterday"}`, Record{}, "since"},
		"a year that cannot be written": {`{"state":"held","since":"9999-12-31T23:59:59-01:00"}`, Record{}, "since"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseRecord(c.value)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestRecordFormat(t *testing.T) {
	r := Record{State: Held, BootID: "b1", Since: time.Date(2026, 8, 1, 12, 0, 0, 0, time.FixedZone("", 7200)), Reason: Rebooted}
	require.JSONEq(t, `{"state":"held","bootID":"b1","since":"2026-08-01T10:00:00Z","reason":"Rebooted"}`, r.Format())
}

func FuzzParseRecord(f *testing.F) {
	f.Add(`{"state":"held","bootID":"b1","since":"2026-08-01T10:00:00Z","reason":"NewNode","taint":"k"}`)
	f.Add(`{"state":"held","marks":["karpenter.sh/do-not-disrupt"],"networkUp":"CalicoIsUp","networkBuilt":true}`)
	f.Add(`{"state":"released","since":"0000-01-01T00:00:00+01:00"}`)
	f.Add(`{"STATE":"released","since":""}`)
	f.Add("{\"state\":\"overridden\",\"bootID\":\"\xff\"}")
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, value string) {
		r, err := ParseRecord(value)
		if err != nil {
			require.Equal(t, Record{}, r, "an error comes with nothing to go by")
			return
		}
		require.Contains(t, []State{Held, Released, Overridden}, r.State)
		again, err := ParseRecord(r.Format())
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}
