{{/* The image by digest if there is one, otherwise by tag. The argument is [image, chart]. */}}
{{- define "holdfast.image" -}}
{{- $image := index . 0 -}}
{{- $chart := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* cordon or taint. */}}
{{- define "holdfast.holdMode" -}}
{{- if ne .Values.hold.mode "auto" -}}
{{ .Values.hold.mode }}
{{- else if eq .Values.autoscaler "none" -}}
cordon
{{- else -}}
taint
{{- end -}}
{{- end -}}

{{/* The key of the taint that holds nodes; empty for the cordon. */}}
{{- define "holdfast.taintKey" -}}
{{- if eq (include "holdfast.holdMode" .) "taint" -}}
{{ .Values.hold.taintKey | default (get (dict
  "none" "holdfast.dev/held"
  "cluster-autoscaler" "startup-taint.cluster-autoscaler.kubernetes.io/holdfast"
  "karpenter" "readiness.k8s.io/holdfast") .Values.autoscaler) }}
{{- end -}}
{{- end -}}

{{/*
Not empty if the policy holdfast-born-held is installed. Without a cluster, helm template knows no
kinds, not even Node; then the version of --kube-version decides.
*/}}
{{- define "holdfast.isBornHeld" -}}
{{- if eq .Values.bornHeld "enabled" -}}
true
{{- else if and (eq .Values.bornHeld "auto") (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $known := .Capabilities.APIVersions -}}
{{- if or ($known.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") (not ($known.Has "v1/Node")) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The caBundle of an entry of the webhook configuration. */}}
{{- define "holdfast.caBundle" -}}
{{- if eq .Values.certificates.mode "secret" }}
    caBundle: {{ .Values.certificates.caBundle | b64enc }}
{{- end -}}
{{- end -}}

{{/* Not empty if agents and webhook serve their metrics over HTTPS. */}}
{{- define "holdfast.isMetricsSecure" -}}
{{- if or .Values.metrics.enabled .Values.monitoring.enabled -}}
true
{{- end -}}
{{- end -}}

{{/* Labels of the user, after labels of the chart in the same line. */}}
{{- define "holdfast.moreLabels" -}}
{{- range $key, $value := . -}}
, {{ $key | quote }}: {{ $value | quote }}
{{- end -}}
{{- end -}}

{{/*
The bytes of a quantity that is a number, or has a unit such as Mi. Empty for other forms, such as
1.5Gi.
*/}}
{{- define "holdfast.bytes" -}}
{{- $quantity := kindIs "string" . | ternary . (int64 . | toString) -}}
{{- if regexMatch "^[0-9]+([kMG]|[KMG]i)?$" $quantity -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 -}}
{{- mul (regexFind "^[0-9]+" $quantity) (get $units (regexFind "[kMGi]*$" $quantity)) -}}
{{- end -}}
{{- end -}}
