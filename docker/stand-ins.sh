#!/bin/sh
# Makes one image with etcd, Prometheus and Alertmanager from Debian's packages, in place of the upstream images where
# no image registry is reached. Usage: stand-ins.sh NAME
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=${1:?usage: stand-ins.sh NAME}

command -v mmdebstrap >/dev/null || {
  echo "mmdebstrap is not installed (Debian: apt-get install mmdebstrap)" >&2
  exit 69
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2016  # mmdebstrap puts the directory in place of $1
mmdebstrap --quiet --variant=minbase --include=etcd-server,etcd-client,prometheus,prometheus-alertmanager \
  --customize-hook='ln -s prometheus-alertmanager "$1/usr/bin/alertmanager"' bookworm "$work/root.tar"
"$here/engine.sh" podman import --quiet \
  --change 'VOLUME /data' --change 'CMD ["etcd"]' --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin' \
  "$work/root.tar" "$name"
