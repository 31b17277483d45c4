#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs packages of Debian into an image, and removes what apt, debconf and ldconfig note down on the way: it would make
# every build another image.
#
#   install.sh PACKAGE...
set -eu
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache \
  /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
