package ledger

import (
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// heed counts what is not heard of the observations, and logs it when it changes. Every cluster has a memory.
func (l *Leader) heed(all []*v1alpha1.EtcdCluster) {
	counts := map[protect.IgnoredReason]int{}
	for _, c := range all {
		var words []string
		for _, i := range protect.Unheard(c, l.o.Now()) {
			counts[i.Reason]++
			words = append(words, i.Node+" "+string(i.Reason))
		}
		if text := strings.Join(words, ", "); l.memories[c.UID].said.new("unheard", text) {
			l.log.Info("not everything that agents publish is heard", "etcd_cluster", c.Name, "ignored", text)
		}
	}
	for _, reason := range protect.IgnoredReasons() {
		l.book.metrics.ignored.WithLabelValues(string(reason)).Set(float64(counts[reason]))
	}
}
