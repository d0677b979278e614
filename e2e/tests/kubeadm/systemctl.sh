#!/bin/sh
# Stands in for systemd's: one unit, the kubelet, which the machine's supervisor keeps running.
pid() { p=$(cat FOLDER/kubelet.pid 2>/dev/null) && [ -n "$p" ] && kill -0 "$p" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$p/status"; }
stop() { touch FOLDER/kubelet.stopped; while pid; do sleep 0.02; done; }
start() { rm -f FOLDER/kubelet.stopped; until pid; do sleep 0.02; done; }
case "$*" in
  daemon-reload | "enable kubelet"*) ;;
  "start kubelet"*) start ;;
  "stop kubelet"*) stop ;;
  "restart kubelet"*) stop && start ;;
  "is-enabled kubelet"*) echo enabled ;;
  "is-active kubelet"*) if pid; then echo active; else echo inactive && exit 3; fi ;;
  "status kubelet"*) echo "Loaded: loaded" ;;
  *) echo "Unit $* could not be found." >&2 && exit 4 ;;
esac
