#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Collects what an image for GPUs needs of NVIDIA's libraries from where the toolkit put them, under the names that programs
# load them by, and their licences:
#
#   cuda-libraries.sh DESTINATION       makes DESTINATION/store, DESTINATION/stage, DESTINATION/licences
#
# A store takes NCCL. A stage also takes cuBLASLt (products), cuDNN (attention) and NVRTC, with which cuDNN compiles.
set -eu
destination=$1
cuda=${CUDA_HOME:-/usr/local/cuda}

take() { # folder of the image, names or patterns...
  into=$destination/$1
  shift
  mkdir -p "$into"
  for name in "$@"; do
    found=
    for folder in "$cuda/lib64" "$cuda/lib" /usr/lib/x86_64-linux-gnu; do
      for file in "$folder"/$name; do
        if [ -e "$file" ]; then
          cp -L "$file" "$into/" # the file itself: longer names of it are not needed
          found=yes
        fi
      done
      [ -z "$found" ] || break
    done
    [ -n "$found" ] || { echo "cuda-libraries: $name is not in $cuda/lib64 nor in /usr/lib/x86_64-linux-gnu" >&2; exit 1; }
  done
}

take store 'libnccl.so.2'
take stage 'libcublasLt.so.1[0-9]' 'libcudnn.so.9' 'libcudnn_*.so.9' 'libnvrtc.so.1[0-9]' 'libnvrtc-builtins.so.1[0-9].[0-9]'

mkdir -p "$destination/licences"
for file in "$cuda"/EULA.txt "$cuda"/dist-info/*/licenses/* /usr/share/doc/libcudnn9*/copyright /usr/share/doc/libnccl*/copyright; do
  if [ -f "$file" ]; then
    cp -L "$file" "$destination/licences/$(echo "${file#"$cuda"/}" | tr -s / - | sed 's/^-//')"
  fi
done
