#!/bin/sh
# Makes a base image of Debian's Python from Debian's packages alone, for machines that reach no image registry.
# Usage: base.sh NAME
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=${1:?usage: base.sh NAME}

command -v mmdebstrap >/dev/null || {
  echo "mmdebstrap is not installed (Debian: apt-get install mmdebstrap)" >&2
  exit 69
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$work/root.tar"
"$here/engine.sh" podman import --quiet "$work/root.tar" "$name"
