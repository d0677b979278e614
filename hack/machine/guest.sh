#!/usr/bin/env bash
# The acceptance test as the machine runs it, one part a boot.
set -uo pipefail
export SYSTEMD_COLORS=0 SYSTEMD_URLIFY=0 PATH=/handed:/usr/sbin:/usr/bin:/sbin:/bin KUBECONFIG=/etc/kubernetes/super-admin.conf
state=/var/lib/acceptance
mkdir -p $state
driver=$(cat /handed/cgroup-driver 2>/dev/null || echo systemd)
# A processor in software, on a machine that does other things as well, takes its time.
patience=4

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
running() { [ "$(kubectl get pod limited -o 'jsonpath={.status.phase}')" = Running ]; }
running_since_boot() {
  local started
  running || return 1
  started=$(kubectl get pod limited -o 'jsonpath={.status.containerStatuses[0].state.running.startedAt}')
  [ "$(date -d "$started" +%s)" -gt "$(($(date +%s) - $(cut -d. -f1 /proc/uptime)))" ]
}

# The control group of the pod, as its driver names it, and what the kernel holds it to.
limits() {
  local uid pod
  uid=$(kubectl get pod limited -o 'jsonpath={.metadata.uid}')
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
  kubectl apply -f - <<'END' || fail "the pod"
apiVersion: v1
kind: Pod
metadata:
  name: limited
spec:
  terminationGracePeriodSeconds: 5
  containers:
    - name: main
      image: busybox:1.36
      command: [sleep, infinity]
      resources:
        limits: {cpu: 250m, memory: 64Mi}
END
  until_ok 180 "the pod runs" running
  kubectl get nodes,pods -A -o wide
  limits
  all_active
  until_ok 60 "exec" kubectl exec limited -- true
}

case $(cat $state/part 2>/dev/null) in
  '')
    say "systemd $(systemctl --version | head -1 | cut -d' ' -f2) is PID 1 ($(cat /proc/1/comm)), kernel $(uname -r)"
    install_and_start
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
    until_ok 60 "exec" kubectl exec limited -- true
    finish 0
    ;;
esac
