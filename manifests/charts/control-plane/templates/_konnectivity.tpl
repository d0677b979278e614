{{/* HOST:PORT for agents; without a host it is the control plane's. */}}
{{- define "control-plane.konnectivityEndpoint" -}}
{{- $konnectivity := .Values.konnectivity -}}
{{- $port := int $konnectivity.endpoint.port -}}
{{- if eq .Values.service.type "NodePort" -}}
{{- if not (or $konnectivity.nodePort $port) -}}
{{- fail "service.type NodePort needs konnectivity.nodePort: agents are told the port" -}}
{{- end -}}
{{- $port = default (int $konnectivity.nodePort) $port -}}
{{- end -}}
{{- $host := $konnectivity.endpoint.host -}}
{{- if contains ":" $host -}}{{- $host = printf "[%s]" $host -}}{{- end -}}
{{- printf "%s:%d" $host (default (int $konnectivity.port) $port | int) -}}
{{- end -}}

{{/* The server, beside an API server: up before it, and there until it has ended. */}}
{{- define "control-plane.konnectivityServer" -}}
{{- $konnectivity := .Values.konnectivity -}}
{{- $flags := dict
  "uds-name" "/run/konnectivity/server.socket"
  "server-port" "0"
  "mode" $konnectivity.mode
  "cluster-cert" "/etc/konnectivity/server.crt"
  "cluster-key" "/etc/konnectivity/server.key"
  "agent-port" (int $konnectivity.port)
  "agent-namespace" "kube-system"
  "agent-service-account" "konnectivity-agent"
  "authentication-audience" "system:konnectivity-server"
  "kubeconfig" "/etc/konnectivity/kubeconfig"
  "server-id" "$(POD_NAME)"
  "server-count" (int .Values.apiServer.replicas)
  "enable-lease-controller" "true"
  "lease-namespace" "kube-system"
  "proxy-strategies" "destHost,default"
  "keepalive-time" "1m"
  "admin-port" (int $konnectivity.server.adminPort)
  "health-port" (int $konnectivity.server.healthPort)
-}}
name: konnectivity-server
restartPolicy: Always
image: {{ include "control-plane.image" (dict "root" . "key" "konnectivityServer" "name" "kas-network-proxy/proxy-server") }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
command:
  - /proxy-server
  {{- include "control-plane.flags" (dict "own" $flags "extra" $konnectivity.server.extraArgs) | nindent 2 }}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
ports:
  - {name: konnectivity, containerPort: {{ int $konnectivity.port }}}
  - {name: tunnel-health, containerPort: {{ int $konnectivity.server.healthPort }}}
startupProbe:
  httpGet: {path: /healthz, port: tunnel-health}
  periodSeconds: 1
  failureThreshold: 120
# Whether it is ready is whether there are agents: without a node there are none, and nodes need the API to join.
livenessProbe:
  httpGet: {path: /healthz, port: tunnel-health}
  timeoutSeconds: 15
  periodSeconds: 10
  failureThreshold: 8
securityContext:
  {{- include "control-plane.containerSecurityContext" . | nindent 2 }}
resources:
  {{- toYaml $konnectivity.server.resources | nindent 2 }}
volumeMounts:
  - {name: konnectivity, mountPath: /run/konnectivity}
  - {name: konnectivity-pki, mountPath: /etc/konnectivity, readOnly: true}
{{- end -}}

{{/* For the new cluster: who may do what, and agents. They are on the hosts' network, so that they need neither a network
     plugin nor kube-proxy, and reach the API where the kubelet does. */}}
{{- define "control-plane.konnectivityAgent" -}}
{{- $agent := .Values.konnectivity.agent -}}
{{- $flags := dict
  "proxy-server-host" "${KONNECTIVITY_HOST}"
  "proxy-server-port" "${KONNECTIVITY_PORT}"
  "ca-cert" "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
  "service-account-token-path" "/var/run/secrets/tokens/konnectivity-agent-token"
  "agent-id" "$(NODE_NAME)"
  "agent-identifiers" "host=$(HOST_IP)&host=$(NODE_NAME)"
  "count-server-leases" "true"
  "lease-namespace" "kube-system"
  "kubeconfig" "/etc/konnectivity/kubeconfig"
  "keepalive-time" "1m"
  "admin-server-port" (int $agent.adminPort)
  "health-server-port" (int $agent.healthPort)
-}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: system:konnectivity-server
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:auth-delegator
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:konnectivity-server"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: system:konnectivity-server
  namespace: kube-system
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, create, update, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: system:konnectivity-server
  namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: system:konnectivity-server
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:konnectivity-server"}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: konnectivity-agent
  namespace: kube-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: system:konnectivity-agent
  namespace: kube-system
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: system:konnectivity-agent
  namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: system:konnectivity-agent
subjects:
- {kind: ServiceAccount, name: konnectivity-agent, namespace: kube-system}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: konnectivity-agent
  namespace: kube-system
data:
  kubeconfig: |
    apiVersion: v1
    kind: Config
    current-context: agent
    clusters:
    - name: kubernetes
      cluster:
        server: https://${CONTROL_PLANE_ENDPOINT}
        certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    users:
    - name: agent
      user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}
    contexts:
    - name: agent
      context: {cluster: kubernetes, user: agent}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: konnectivity-agent
  namespace: kube-system
  labels: {k8s-app: konnectivity-agent}
spec:
  selector:
    matchLabels: {k8s-app: konnectivity-agent}
  template:
    metadata:
      labels: {k8s-app: konnectivity-agent}
    spec:
      serviceAccountName: konnectivity-agent
      priorityClassName: system-node-critical
      hostNetwork: true
      # The node's own: cluster DNS may be at the other end of the tunnel.
      dnsPolicy: Default
      nodeSelector:
        kubernetes.io/os: linux
        {{- with $agent.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      tolerations:
        {{- toYaml (default (list (dict "operator" "Exists")) $agent.tolerations) | nindent 8 }}
      securityContext:
        {{- include "control-plane.podSecurityContext" . | nindent 8 }}
      containers:
      - name: konnectivity-agent
        image: {{ include "control-plane.image" (dict "root" . "key" "konnectivityAgent" "name" "kas-network-proxy/proxy-agent") }}
        command:
        - /proxy-agent
        {{- include "control-plane.flags" (dict "own" $flags "extra" $agent.extraArgs) | nindent 8 }}
        env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        - name: HOST_IP
          valueFrom: {fieldRef: {fieldPath: status.hostIP}}
        ports:
        - {name: health, containerPort: {{ int $agent.healthPort }}}
        readinessProbe:
          httpGet: {path: /readyz, port: health}
          periodSeconds: 2
        livenessProbe:
          httpGet: {path: /healthz, port: health}
          initialDelaySeconds: 15
          timeoutSeconds: 15
          failureThreshold: 8
        securityContext:
          {{- include "control-plane.containerSecurityContext" . | nindent 10 }}
        resources:
          {{- toYaml $agent.resources | nindent 10 }}
        volumeMounts:
        - {name: kubeconfig, mountPath: /etc/konnectivity, readOnly: true}
        - {name: token, mountPath: /var/run/secrets/tokens, readOnly: true}
      volumes:
      - name: kubeconfig
        configMap: {name: konnectivity-agent}
      - name: token
        projected:
          sources:
          - serviceAccountToken: {path: konnectivity-agent-token, audience: "system:konnectivity-server"}
{{- end -}}
