#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Programs for a machine that has a GPU and NVIDIA's libraries, and not those that services are built with: what `build` holds,
# with the shared libraries that it needs beside it.
#
#   tests/gpu/pack.sh OUT.tar.xz                                       here, after a build with CUDA
#   tar -xJf OUT.tar.xz && BALLAST_BIN=$PWD/packed/bin tests/gpu/run.sh "1 2"      there, in the tree
#
# The other machine's C library is to be as new as this one's. Needs patchelf: programs find these libraries by where they are
# themselves, so that nothing else on that machine does.
set -euo pipefail
out=$(realpath "$1")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/packed/{bin,lib,tests,deps}
cp build/bin/{stage-service,activation-store,ballast-driver,ballastctl,ballast-bench} "$work/packed/bin"
cp build/lib/libballast-cuda*.so "$work/packed/lib"
cp build/tests/gpu-{runner,paths} "$work/packed/tests"
# Not what every machine has, and not NVIDIA's, which are to be that machine's own.
there='/lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|z|ssl|crypto|cuda[a-z]*|cublas[a-zA-Z]*|cudnn[a-z_]*|nccl|nvrtc[a-z-]*)\.so|linux-vdso|ld-linux'
ldd "$work"/packed/{bin,tests}/* | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u | grep -vE "$there" | xargs cp -Lt "$work/packed/deps"
strip --strip-debug "$work"/packed/bin/* "$work"/packed/lib/* "$work"/packed/tests/*
for file in "$work"/packed/{bin,tests,deps}/*; do # an RPATH, which a RUNPATH is not, is for libraries of libraries too
  patchelf --force-rpath --set-rpath "\$ORIGIN/../deps" "$file"
done
tar -C "$work" -cJf "$out" packed
ls -l "$out"
