#!/bin/sh
# Builds the image, hermetically: wheels are fetched by the lock and its hashes first, the build has no network.
# Usage: image.sh NAME [BASE_IMAGE]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=${1:?usage: image.sh NAME [BASE_IMAGE]}
base=${2:-docker.io/library/python:3.11-slim-bookworm}
wheels=$here/../build/wheels
python=${PYTHON:-python3}

"$here/engine.sh" buildah --version >/dev/null
mkdir -p "$wheels"
# The image's Python is 3.11, whatever this one is.
"$python" -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --dest "$wheels" \
  --python-version 3.11 --only-binary=:all: --requirement "$here/requirements.lock"
"$here/engine.sh" buildah build --format docker --isolation oci --network none --layers --file "$here/Dockerfile" --tag "$name" \
  --build-arg BASE_IMAGE="$base" --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels \
  --build-arg REVISION="$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)" \
  --volume "$(cd "$wheels" && pwd)":/wheels:ro "$here/.." || {
  code=$?
  echo "image.sh: $name was not built on $base. Where no image registry is reached: make base-image, then" \
    "make image BASE_IMAGE=localhost/python-base:3.11-bookworm" >&2
  exit "$code"
}
