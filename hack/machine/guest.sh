#!/usr/bin/env bash
# The acceptance test as the machine runs it, one part a boot.
set -uo pipefail
export SYSTEMD_COLORS=0 SYSTEMD_URLIFY=0 PATH=/handed:/usr/sbin:/usr/bin:/sbin:/bin KUBECONFIG=/etc/kubernetes/super-admin.conf
state=/var/lib/acceptance
mkdir -p $state
driver=$(cat /handed/cgroup-driver 2>/dev/null || echo systemd)
# A processor in software, on a machine that does other things as well, takes its time.
patience=4
# Of a shutdown, and of it for critical pods. What the kubelet has not written when it is over is lost.
period=$((30 * patience)) critical=$((10 * patience))

say() { echo "[$(cut -d. -f1 /proc/uptime) s] $*"; }
finish() {
  echo "machine: exit $1"
  sync
  systemctl poweroff
  exit "$1"
}
fail() {
  say "FAILED: $*"
  systemctl --no-pager --lines=0 status kube-etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet |
    grep -E '●|Active:|Status:'
  journalctl --no-pager -b -o cat -u kubelet -u kube-apiserver -u kube-controller-manager -u kube-proxy -u kube-etcd -n 60
  systemctl --no-pager --failed
  finish 1
}
# until_ok SECONDS WHAT COMMAND…: waits until the command succeeds, on a slow machine for longer.
until_ok() {
  local limit=$(($(cut -d. -f1 /proc/uptime) + $1 * patience)) what=$2
  shift 2
  until "$@" >$state/last 2>&1; do
    [ "$(cut -d. -f1 /proc/uptime)" -lt $limit ] || { cat $state/last; fail "$what: not in time"; }
    sleep 1
  done
  say "$what"
}
equal() { [ "$2" = "$3" ] && say "$1: $2" || fail "$1: $2 and not $3"; }
units="kube-etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet"

ready() { [ "$(kubectl get node machine -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
# A heartbeat of this boot: what the last one left in the API says nothing.
ready_since_boot() {
  local beat
  ready || return 1
  beat=$(kubectl get lease -n kube-node-lease machine -o 'jsonpath={.spec.renewTime}')
  [ "$(date -d "$beat" +%s)" -gt "$(($(date +%s) - $(cut -d. -f1 /proc/uptime)))" ]
}
# limited: the name of the pod that runs, of a Deployment: the one before a reboot has failed and stays.
limited() { kubectl get pods -l app=limited --field-selector status.phase=Running -o 'jsonpath={.items[0].metadata.name}'; }
running() { limited >/dev/null; }
running_since_boot() {
  local started
  started=$(kubectl get pod "$(limited)" -o 'jsonpath={.status.containerStatuses[0].state.running.startedAt}') || return 1
  [ "$(date -d "$started" +%s)" -gt "$(($(date +%s) - $(cut -d. -f1 /proc/uptime)))" ]
}

# The control group of the pod, as its driver names it, and what the kernel holds it to.
limits() {
  local uid pod
  uid=$(kubectl get pod "$(limited)" -o 'jsonpath={.metadata.uid}')
  equal "file system of /sys/fs/cgroup" "$(stat -fc %T /sys/fs/cgroup)" cgroup2fs
  if [ "$driver" = systemd ]; then
    pod=/sys/fs/cgroup/kubepods.slice/kubepods-pod${uid//-/_}.slice
  else
    pod=/sys/fs/cgroup/kubepods/pod$uid
  fi
  [ -d "$pod" ] || fail "no $pod; there are $(find /sys/fs/cgroup -maxdepth 3 -name '*pod*' | tr '\n' ' ')"
  equal "memory.max of the pod" "$(cat "$pod/memory.max")" 67108864
  equal "cpu.max of the pod" "$(cat "$pod/cpu.max")" "25000 100000"
  local container
  container=$(find "$pod" -mindepth 1 -maxdepth 1 -type d -exec sh -c 'grep -q 67108864 "$1/memory.max"' _ {} \; -print | head -1)
  [ -n "$container" ] || fail "no container below $pod has its limit"
  say "the container: $container"
  equal "cpu.max of the container" "$(cat "$container/cpu.max")" "25000 100000"
  [ "$driver" != systemd ] || equal "slice of the pod" "$(systemctl show -p ActiveState --value "$(basename "$pod")")" active
}
all_active() {
  for unit in $units; do
    equal "$unit" "$(systemctl is-active $unit)" active
  done
  equal "restarts of the kubelet" "$(systemctl show -p NRestarts --value kubelet)" 0
  systemctl --no-pager --lines=0 status kubelet
}

install_and_start() {
  dpkg -i /handed/deb/*.deb >$state/dpkg 2>&1 || { cat $state/dpkg; fail "dpkg"; }
  for unit in $units; do
    equal "$unit after its installation" "$(systemctl is-active $unit)/$(systemctl is-enabled $unit)" inactive/disabled
  done
  say "certificates"
  # RSA, the default, would take minutes on a processor in software.
  ironclad pki init --apiserver-advertise-address=10.0.2.15 --encryption-algorithm=ECDSA-P256 || fail "ironclad pki init"
  ironclad pki check-expiration || fail "ironclad pki check-expiration"
  ls -l /etc/kubernetes /etc/kubernetes/pki /etc/kubernetes/pki/etcd
  install -D -m 0644 /usr/share/ironclad/systemd/kubelet-config.yaml /var/lib/kubelet/config.yaml
  sed -i "s/^shutdownGracePeriod: .*/shutdownGracePeriod: ${period}s/" /var/lib/kubelet/config.yaml
  sed -i "s/^shutdownGracePeriodCriticalPods: .*/shutdownGracePeriodCriticalPods: ${critical}s/" /var/lib/kubelet/config.yaml
  if [ "$driver" != systemd ]; then
    sed -i "s/^cgroupDriver: .*/cgroupDriver: $driver/" /var/lib/kubelet/config.yaml
    sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' /etc/containerd/config.toml
    systemctl restart containerd
  fi
  for image in /handed/images/*.tar; do
    ctr -n k8s.io images import "$image" >/dev/null || fail "import of $image"
  done
  systemctl enable --quiet --now $units || fail "the units do not start"
  say "units are started"
  until_ok 120 "/readyz" kubectl get --raw /readyz
  kubectl apply -f /usr/share/ironclad/rbac || fail "rbac"
  export KUBECONFIG=/etc/kubernetes/admin.conf
  until_ok 180 "the node is Ready" ready
  # Admission wants each namespace's service account, which a controller makes.
  until_ok 60 "the pods are made" kubectl apply -f /handed/pods.yaml
  install -D -m 0600 /handed/static.yaml /etc/kubernetes/manifests/static.yaml
  until_ok 180 "the pod runs" running
  kubectl get nodes,pods -A -o wide
  limits
  all_active
  until_ok 60 "exec" kubectl exec "$(limited)" -- true
  until_ok 180 "all pods run" all_run
}

all_run() {
  local phases
  phases=$(kubectl get pods -A -o 'jsonpath={range .items[*]}{.metadata.name}={.status.phase} {end}')
  grep -q "graceful=Running" <<<"$phases" && grep -q "last=Running" <<<"$phases" && grep -q "patient=Running" <<<"$phases" &&
    grep -q "static-machine=Running" <<<"$phases"
}

# What logind grants and holds: the kubelet's delay of shutdowns, for as long as all periods of its configuration.
inhibits() {
  local listed
  listed=$(systemd-inhibit --list --no-legend --no-pager) || return 1
  grep -E '^kubelet .* shutdown +Kubelet needs time to handle node shutdown +delay' <<<"$listed"
}
longest_delay() {
  busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec
}
delays_shutdowns() {
  until_ok 60 "logind has the kubelet's delay" inhibits
  cat $state/last
  equal "longest delay" "$(longest_delay)" "t ${period}000000"
}

# field POD PATH: a field of a pod's status.
field() { kubectl get pod "$1" -n "${3:-default}" -o "jsonpath={.status$2}"; }
# Pods that the last shutdown ended: in order, each in its time, and told of.
were_ended() {
  local told="Pod was terminated in response to imminent node shutdown." times=$state/pods
  for pod in graceful patient last; do
    local namespace=default
    [ $pod != last ] || namespace=kube-system
    equal "phase and reason of $pod" "$(field $pod .phase $namespace)/$(field $pod .reason $namespace)" Failed/Terminated
    equal "message of $pod" "$(field $pod .message $namespace)" "$told"
    equal "condition of $pod" \
      "$(field $pod '.conditions[?(@.type=="DisruptionTarget")].reason' $namespace)" TerminationByKubelet
  done
  equal "exit code of a pod that ended by itself" "$(field graceful '.containerStatuses[0].state.terminated.exitCode')" 0
  equal "exit code of one that was killed" "$(field patient '.containerStatuses[0].state.terminated.exitCode')" 137
  say "seconds of the machine at each end: $(cd $times && head -n 1 stopping stopped last | tr '\n' ' ')"
  [ "$(cat $times/stopping)" -le "$(cat $times/stopped)" ] || fail "the container was stopped before its preStop ended"
  [ "$(cat $times/stopped)" -le "$(cat $times/last)" ] || fail "the critical pod was told before the others had ended"
  equal "event of the node" \
    "$(kubectl get events --field-selector involvedObject.kind=Node,reason=Shutdown -o 'jsonpath={.items[0].message}')" \
    "Shutdown manager detected shutdown event"
  local began ended
  began=$(metric kubelet_graceful_shutdown_start_time_seconds) ended=$(metric kubelet_graceful_shutdown_end_time_seconds)
  [ "$ended" -gt "$began" ] || fail "the kubelet's metrics: from $began to $ended"
  [ $((ended - began)) -le $period ] || fail "the shutdown took $((ended - began)) s, more than its period"
  say "the last shutdown took $((ended - began)) s"
}
metric() { kubectl get --raw /api/v1/nodes/machine/proxy/metrics | awk -v name="$1" '$1 == name {printf "%d", $2}'; }
static_since_boot() {
  local started
  started=$(field static-machine '.containerStatuses[0].state.running.startedAt') && [ -n "$started" ] || return 1
  [ "$(date -d "$started" +%s)" -gt "$(($(date +%s) - $(cut -d. -f1 /proc/uptime)))" ]
}

case $(cat $state/part 2>/dev/null) in
  '')
    say "systemd $(systemctl --version | head -1 | cut -d' ' -f2) is PID 1 ($(cat /proc/1/comm)), kernel $(uname -r)"
    install_and_start
    delays_shutdowns
    systemctl restart systemd-logind
    say "logind is started anew"
    delays_shutdowns
    kubectl get node machine -o 'jsonpath={.status.nodeInfo.bootID}' >$state/boot
    echo rebooted >$state/part
    sync
    say "reboot"
    systemctl reboot
    ;;
  rebooted)
    say "up again, with nobody's hand on it"
    until_ok 300 "the node is Ready again" ready_since_boot
    boot=$(kubectl get node machine -o 'jsonpath={.status.nodeInfo.bootID}')
    [ "$boot" != "$(cat $state/boot)" ] || fail "the node's bootID is that of the last boot"
    until_ok 180 "the pod runs again" running_since_boot
    limits
    all_active
    until_ok 60 "exec" kubectl exec "$(limited)" -- true
    until_ok 120 "the static pod runs again" static_since_boot
    kubectl get pods -A -o wide
    were_ended
    delays_shutdowns
    finish 0
    ;;
esac
