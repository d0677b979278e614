#!/usr/bin/env bash
# Prints the argument of `cluster up` for cluster DNS: hack/dns-image.sh DNS FOLDER CLUSTER. Its image is built once. A
# cluster without it is of more use than none: where it cannot be built the reason is told, and nothing is printed.
set -euo pipefail
[ "$1" = none ] && exit
archive=$2/coredns.tar
if ! "$(dirname "$0")/../e2e/images/coredns.sh" "$2" "$3" >&2; then
  if [ ! -e "$archive" ]; then
    echo "==> no cluster DNS: its image was not built, see above; names of Services do not resolve" >&2
    exit
  fi
  echo "==> the image of cluster DNS is the one that was built before" >&2
fi
echo "--dns $archive"
