#!/usr/bin/env bash
# Builds the image without a Docker engine and runs it as KubeRay would: its probes, a head without CPUs, a worker that
# joins later, a sweep as a Ray job; then the quickstart. Needs root, Debian's buildah and debootstrap, 30 GB of disk
# and a quarter of an hour. Not part of CI.
#   tests/cluster/image.sh [FOLDER]
# FOLDER (default: a new one below /var/tmp) holds the storage and is deleted afterwards; KEEP=1 keeps it.
# PIP_OPTIONS goes to the build; BUILD_OPTIONS goes to buildah, such as "--volume /etc/ssl/mine.crt:/run/mine.crt:ro".
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-$(mktemp -d /var/tmp/pcr-ray-image.XXXXXX)}
mkdir -p "$folder"
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$folder/storage" --runroot "$folder/run" --storage-driver vfs "$@"; }
say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

container=""
clean() {
    [ -z "$container" ] || buildah rm "$container" > /dev/null || true
    [ -n "${KEEP:-}" ] || rm -rf "$folder"
}
trap clean EXIT

say "a stand-in for the slim Python base"
if ! buildah inspect --type image docker.io/library/python:3.11-slim > /dev/null 2>&1; then
    # Debian 12 has Python 3.11. In the real base pip may install beside the system's packages, so here too.
    debootstrap --variant=minbase --include=python3,python3-pip,python3-venv bookworm "$folder/base" > "$folder/base.log"
    rm -f "$folder"/base/usr/lib/python3.*/EXTERNALLY-MANAGED
    ln -sf python3 "$folder/base/usr/bin/python"
    base=$(buildah from scratch)
    buildah add --quiet "$base" "$folder/base" /
    buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin --cmd python3 "$base"
    buildah commit --quiet --rm "$base" docker.io/library/python:3.11-slim
    rm -rf "$folder/base"
fi

say "build"
# shellcheck disable=SC2086
buildah build --pull-never --format docker --tag pcr-ray ${BUILD_OPTIONS:-} \
    --build-arg PIP_OPTIONS="${PIP_OPTIONS:-}" \
    --build-arg VERSION="$(sed -n 's/^__version__ = "\(.*\)"/\1/p' pcr_ray/__init__.py)" \
    --build-arg COMMIT="$(git rev-parse HEAD)" . > "$folder/build.log" 2>&1 || { tail -50 "$folder/build.log"; exit 1; }
buildah inspect --type image --format '{{.Docker.Config.Labels}} user {{.Docker.Config.User}}' pcr-ray
du -sh "$folder"

say "pcr-ray check, as the image's user"
container=$(buildah from --pull-never pcr-ray)
inside() { buildah run "$container" -- "$@"; }
inside id
inside pcr-ray check

say "KubeRay's way"
inside bash -s < tests/cluster/image_inside.sh

say "quickstart"
inside bash -c 'cd && pcr-ray sweep sweeps/quickstart.yaml ${QUICKSTART_OPTIONS:-}'
say "done"
