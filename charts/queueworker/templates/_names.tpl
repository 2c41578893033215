{{- define "queueworker.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 53 | trimSuffix "-" -}}
{{- end }}

{{- define "queueworker.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "queueworker.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the account that exists, or set serviceAccount.create" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* Of the chart and of the release, so that operators of two releases can share a cluster. */}}
{{- define "queueworker.clusterName" -}}
{{- printf "%s:%s:%s" .Release.Namespace (include "queueworker.name" .) "operator" -}}
{{- end }}

{{- define "queueworker.selector" -}}
app.kubernetes.io/name: queueworker-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "queueworker.labels" -}}
{{ include "queueworker.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: queueworker
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* What the operator may do where it watches. */}}
{{- define "queueworker.rules" -}}
- apiGroups: [queueworker.dev]
  resources: [queueworkers]
  verbs: [get, list, watch, patch]
- apiGroups: [queueworker.dev]
  resources: [queueworkers/status]
  verbs: [patch]
# Owner references that block deletion ask for this where the cluster enforces it.
- apiGroups: [queueworker.dev]
  resources: [queueworkers/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  # An analysis may have totals of a durable store counted.
  verbs: [get, create, delete]
- apiGroups: [""]
  resources: [pods]
  # delete: an analysis with forceFailure kills one worker of a canary.
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [secrets]
  {{- with .Values.secrets.names }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
