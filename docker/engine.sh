#!/bin/sh
# Runs a container tool: engine.sh podman ..., engine.sh buildah ..., engine.sh podman-compose ...
# Where root may not raise limits, and where control groups are of both versions, with the runtime that copes with it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tool=$1
shift

command -v "$tool" >/dev/null || {
  echo "$tool is not installed (Debian: apt-get install podman buildah runc netavark aardvark-dns;" \
    "pip install podman-compose)" >&2
  exit 69
}

# Bit 24 of the effective capabilities is CAP_SYS_RESOURCE.
capabilities=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
if [ $(((0x$capabilities >> 24) & 1)) -eq 0 ] && [ -z "${CONTAINERS_CONF:-}" ]; then
  mkdir -p "$here/../build"
  CONTAINERS_CONF=$(cd "$here/../build" && pwd)/containers.conf
  export CONTAINERS_CONF
  cat >"$CONTAINERS_CONF.$$" <<CONF
[containers]
log_driver = "k8s-file"
[engine]
runtime = "runc-no-limits"
events_logger = "file"
cgroup_manager = "cgroupfs"
[network]
network_backend = "netavark"
[engine.runtimes]
runc-no-limits = ["$here/runc-no-limits"]
CONF
  mv "$CONTAINERS_CONF.$$" "$CONTAINERS_CONF"
  # buildah's builds do not read the runtime from there.
  export BUILDAH_RUNTIME="$here/runc-no-limits"
fi
exec "$tool" "$@"
