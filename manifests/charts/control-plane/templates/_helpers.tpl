{{/* Names. Suffixes of up to 23 characters follow. */}}
{{- define "control-plane.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "control-plane.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "control-plane.labels" -}}
{{ include "control-plane.selector" . }}
app.kubernetes.io/part-of: ironclad
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* image (dict "root" . "key" "apiServer" "name" "kube-apiserver") */}}
{{- define "control-plane.image" -}}
{{- $images := .root.Values.images -}}
{{- $override := get $images.override .key -}}
{{- if $override -}}
{{- $override -}}
{{- else -}}
{{- $tag := default .root.Chart.AppVersion $images.tag -}}
{{- if eq .name "etcd" -}}{{- $tag = $images.etcdTag -}}{{- end -}}
{{- if hasPrefix "konnectivity" .key -}}{{- $tag = $images.konnectivityTag -}}{{- end -}}
{{- printf "%s/%s:%s" $images.repository .name $tag -}}
{{- end -}}
{{- end -}}

{{/* The release that the control plane is of: its tag, unless that is no version. */}}
{{- define "control-plane.version" -}}
{{- $tag := .Values.images.tag -}}
{{- ternary ($tag | replace "_" "+") .Chart.AppVersion (regexMatch "^v[0-9]+[.][0-9]+[.][0-9]+([_-].*)?$" $tag) -}}
{{- end -}}

{{/* The Service as pods beside it reach it. */}}
{{- define "control-plane.internal" -}}
{{- printf "%s.%s.svc:%d" (include "control-plane.fullname" .) .Release.Namespace (int .Values.service.port) -}}
{{- end -}}

{{/* HOST:PORT for nodes and clients; the host is empty where the address of a load balancer is meant. */}}
{{- define "control-plane.endpoint" -}}
{{- $port := int .Values.endpoint.port -}}
{{- if eq .Values.service.type "NodePort" -}}
{{- if not .Values.endpoint.host -}}
{{- fail "service.type NodePort needs endpoint.host: a name or an address of the host cluster's nodes" -}}
{{- end -}}
{{- if not .Values.service.nodePort -}}
{{- fail "service.type NodePort needs service.nodePort: certificates and kubeconfigs name the port" -}}
{{- end -}}
{{- $port = default (int .Values.service.nodePort) $port -}}
{{- end -}}
{{- $host := .Values.endpoint.host -}}
{{- if and (not $host) (eq .Values.service.type "ClusterIP") -}}
{{- $host = printf "%s.%s.svc" (include "control-plane.fullname" .) .Release.Namespace -}}
{{- end -}}
{{- if contains ":" $host -}}{{- $host = printf "[%s]" $host -}}{{- end -}}
{{- printf "%s:%d" $host (default (int .Values.service.port) $port | int) -}}
{{- end -}}

{{/* --flag=value for each, sorted by flag. flags (dict "own" dict "extra" dict) */}}
{{- define "control-plane.flags" -}}
{{- range $flag, $value := merge (dict) .extra .own }}
- {{ printf "--%s=%v" $flag $value | quote }}
{{- end }}
{{- end -}}

{{- define "control-plane.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "control-plane.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* What all pods of the control plane have in their specification. pod (dict "root" . "component" "etcd" "values" .) */}}
{{- define "control-plane.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "control-plane.podSecurityContext" .root | nindent 2 }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "control-plane.selector" .root | nindent 14 }}
              app.kubernetes.io/component: {{ .component }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Flags of control-plane-bootstrap that certificates and cluster share. */}}
{{- define "control-plane.bootstrapArgs" -}}
- --name={{ include "control-plane.fullname" . }}
- --namespace={{ .Release.Namespace }}
- --host-domain={{ .Values.host.dnsDomain }}
- --endpoint={{ include "control-plane.endpoint" . }}
- --internal={{ include "control-plane.internal" . }}
- --service-cidr={{ .Values.network.serviceCIDR }}
- --dns-domain={{ .Values.network.dnsDomain }}
- --validity-days={{ int .Values.certificates.validityDays }}
{{- range .Values.endpoint.serverNames }}
- --server-name={{ . }}
{{- end }}
{{- if .Values.konnectivity.enabled }}
- --konnectivity={{ include "control-plane.konnectivityEndpoint" . }}
{{- end }}
- --label=app.kubernetes.io/instance={{ .Release.Name }}
- --label=app.kubernetes.io/part-of=ironclad
{{- end -}}

{{/* The pod of a Job. job (dict "root" . "account" "" "args" list "mounts" list "volumes" list) */}}
{{- define "control-plane.jobPod" -}}
metadata:
  labels:
    {{- include "control-plane.selector" .root | nindent 4 }}
    app.kubernetes.io/component: bootstrap
spec:
  serviceAccountName: {{ .account }}
  restartPolicy: Never
  enableServiceLinks: false
  {{- with .root.Values.images.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "control-plane.podSecurityContext" .root | nindent 4 }}
  containers:
    - name: bootstrap
      image: {{ include "control-plane.image" (dict "root" .root "key" "bootstrap" "name" "control-plane-bootstrap") }}
      imagePullPolicy: {{ .root.Values.images.pullPolicy }}
      command: [control-plane-bootstrap]
      args:
        {{- .args | nindent 8 }}
      securityContext:
        {{- include "control-plane.containerSecurityContext" .root | nindent 8 }}
      resources:
        requests: {cpu: 10m, memory: 16Mi}
        limits: {memory: 128Mi}
      {{- with .mounts }}
      volumeMounts:
        {{- . | nindent 8 }}
      {{- end }}
  {{- with .volumes }}
  volumes:
    {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Rules of the Jobs: names of Secrets that do not exist yet cannot be named. */}}
{{- define "control-plane.bootstrapRules" -}}
{{- $name := include "control-plane.fullname" . -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames:
    {{- range list "ca" "etcd" "apiserver" "admin" "controller-manager" "scheduler" "kube-proxy" "konnectivity" "join" }}
    - {{ $name }}-{{ . }}
    {{- end }}
  verbs: [get, patch, delete]
- apiGroups: [""]
  resources: [services]
  resourceNames: [{{ $name }}]
  verbs: [get]
{{- if .Values.konnectivity.enabled }}
# The tunnel's server reads its certificate once: pods that have the one before are replaced.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [{{ $name }}-apiserver]
  verbs: [get, patch]
{{- end }}
{{- end -}}
