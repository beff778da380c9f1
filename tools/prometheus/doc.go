// Package monitoring tests the alerts and the dashboard of manifests/components/monitoring with
// Prometheus' own programs and packages, and draws the picture in docs/metrics.md.
package monitoring
