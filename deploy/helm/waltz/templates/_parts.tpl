{{- define "waltz.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "waltz.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "waltz.coordinator" -}}
zookeeper://{{ .Values.zookeeper.connectString }}{{ .Values.cluster.root }}
{{- end }}

{{/* The domain of the pods of a service: (list . "storage") */}}
{{- define "waltz.domain" -}}
{{- $top := index . 0 -}}
{{ include "waltz.name" $top }}-{{ index . 1 }}.{{ $top.Release.Namespace }}.svc.{{ $top.Values.clusterDomain }}
{{- end }}

{{/* Labels that select pods: (list . "storage") */}}
{{- define "waltz.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: waltz
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "waltz.labels" -}}
{{- $top := index . 0 -}}
{{ include "waltz.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ $top.Chart.Name }}-{{ $top.Chart.Version }}
{{- end }}

{{/* The pod's own part of security: a user of the image, no rights of a machine, no token of Kubernetes. */}}
{{- define "waltz.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
# A node ends by itself within 30 s of SIGTERM (storage.shutdownTimeout, server.shutdownTimeout).
terminationGracePeriodSeconds: 45
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "waltz.container" -}}
image: {{ include "waltz.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Probes of a node. /live answers while the process turns; /health tells what is wrong, of this node
alone, and nothing that it tells is mended by a restart. */}}
{{- define "waltz.probes" -}}
startupProbe:
  httpGet: {path: /live, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 720
livenessProbe:
  httpGet: {path: /live, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/* Where pods run: (list . "storage" values) */}}
{{- define "waltz.placement" -}}
{{- $selector := include "waltz.selector" (list (index . 0) (index . 1)) | fromYaml -}}
{{- $part := index . 2 -}}
{{- $apart := dict "labelSelector" (dict "matchLabels" $selector) "topologyKey" "kubernetes.io/hostname" -}}
affinity:
  podAntiAffinity:
    {{- if eq $part.antiAffinity "required" }}
    requiredDuringSchedulingIgnoredDuringExecution: {{ toJson (list $apart) }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution: {{ toJson (list (dict "weight" 100 "podAffinityTerm" $apart)) }}
    {{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {{ toJson $selector }}}
{{- with $part.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $part.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{/* The keys that all files have: (list . "storage") */}}
{{- define "waltz.keys" -}}
{{- $top := index . 0 -}}
{{- $family := index . 1 -}}
zookeeper.connectString: {{ $top.Values.zookeeper.connectString | quote }}
zookeeper.sessionTimeout: {{ $top.Values.zookeeper.sessionTimeout | int }}
cluster.root: {{ $top.Values.cluster.root | quote }}
{{ $family }}.bindAddress: 0.0.0.0
{{ $family }}.jetty.port: 7280
{{- if $top.Values.tls.enabled }}
{{ $family }}.ssl.keyStore.location: /etc/waltz-tls/tls.crt
{{ $family }}.ssl.keyStore.keyLocation: /etc/waltz-tls/tls.key
{{ $family }}.ssl.trustStore.location: /etc/waltz-tls/ca.crt
{{- end }}
{{- end }}
