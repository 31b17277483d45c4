#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ballast on Debian 13: another compiler, oneDNN 3, another gRPC. Makes a system with debootstrap, copies the sources in,
# builds them there with `./ballast build`, which also installs packages.txt, and runs the unit tests. Everything happens in
# namespaces of its own and in one folder, so nothing is left behind. Skips (77) where it cannot run.
#   debian13.sh [SOURCE]
# BALLAST_DEBIAN13=FOLDER keeps the system and the build there for the next time; BALLAST_DEBIAN_MIRROR names a mirror.
set -euo pipefail
source=$(cd "${1:-$(dirname "$(readlink -f "$0")")/../..}" && pwd)

skip() {
  echo "SKIPPED: $1"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "needs root"
command -v debootstrap >/dev/null || skip "needs debootstrap"
unshare --mount --pid --fork true 2>/dev/null || skip "may not make namespaces"

if [ -n "${BALLAST_DEBIAN13:-}" ]; then
  folder=$BALLAST_DEBIAN13
  mkdir -p "$folder"
else
  folder=$(mktemp -d "${TMPDIR:-/tmp}/ballast-debian13-$$-XXXXXX")
  trap 'rm -rf --one-file-system "$folder"' EXIT
fi
system=$folder/system

if [ ! -f "$folder/ready" ]; then
  rm -rf --one-file-system "$system"
  debootstrap --variant=minbase trixie "$system" ${BALLAST_DEBIAN_MIRROR:+"$BALLAST_DEBIAN_MIRROR"} >"$folder/debootstrap.log" 2>&1 ||
    skip "debootstrap: $(tail -n 1 "$folder/debootstrap.log")"
  touch "$folder/ready"
fi
# How this machine reaches its package mirror.
for file in /etc/apt/apt.conf.d/99*; do
  [ ! -f "$file" ] || cp "$file" "$system/etc/apt/apt.conf.d/"
done
cp -L /etc/resolv.conf "$system/etc/resolv.conf"

# The sources without what is built here; a build of an earlier time is kept.
mkdir -p "$system/ballast"
find "$system/ballast" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
tar -C "$source" --exclude='./build*' --exclude=./.git -cf - . | tar -C "$system/ballast" -xf -

# In the chroot: packages, build, unit tests. Mounts and processes end with the namespaces.
inside() {
  set -e
  mount --make-rprivate /
  mount -t proc proc "$1/proc"
  mount --rbind /dev "$1/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
  mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
  exec chroot "$1" /usr/bin/env -i HOME=/root TERM=dumb LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    bash -ec 'cd /ballast
      ./ballast build
      . /etc/os-release
      dpkg-query -W -f "\${Package} \${Version}\n" gcc libdnnl-dev libgrpc-dev libuv1-dev
      ctest --preset release -L unit -j "$(nproc)"
      echo "unit tests pass on $PRETTY_NAME"'
}
export -f inside
unshare --mount --pid --fork --kill-child=KILL bash -c 'inside "$1"' inside "$system"
