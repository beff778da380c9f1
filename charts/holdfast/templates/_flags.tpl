{{/*
The flags that agent.extraArgs must not contain, because other objects of the chart depend on them,
and what to do instead. checks.yaml prints that after the flag.
*/}}
{{- define "holdfast.agentFlags" -}}
{{- $set := "is set by the chart; remove it" -}}
{{- $hold := "contradicts the policy holdfast-born-held, which must hold nodes in the same way; use hold.mode, hold.taintKey and bornHeld" -}}
{{- dict
  "node" $set
  "host-root" $set
  "hold-mode" $hold
  "hold-taint-key" $hold
  "hold-unrecorded" $hold
  "health-listen" "contradicts the liveness probe; use agent.healthPort"
  "metrics-listen" "requires permissions and a port of the pod; use metrics.enabled and metrics.agentPort"
  "spc-inventory" "is set by spc.enabled; use that value"
  | toJson -}}
{{- end -}}

{{/* The same for webhook.extraArgs. */}}
{{- define "holdfast.webhookFlags" -}}
{{- $files := "contradicts the mounted Secret; use certificates.mode and certificates.secretName" -}}
{{- dict
  "namespace" "contradicts the namespace of the chart; remove it"
  "spc-secret-dir" "contradicts the mounted Secret; use spc.enabled and spc.secretName"
  "listen" "contradicts the port of the pods; use webhook.port"
  "health-listen" "contradicts the probes; use webhook.healthPort"
  "metrics-listen" "contradicts the port of the pods; use webhook.metricsPort"
  "metrics-secure" "requires permissions; use metrics.enabled"
  "cluster-api" "requires permissions and a policy; use clusterAPI.enabled"
  "karpenter" "requires permissions; use karpenterNodeClaims.enabled"
  "guard-drains" "is set by drains.enabled; use that value"
  "tls-cert-file" $files
  "tls-key-file" $files
  | toJson -}}
{{- end -}}
