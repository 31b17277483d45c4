#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes an authority and certificates for the services, as lib/tls wants them: mutual TLS, the role in a
# subjectAltName URI. For tests, and for clusters that have no authority of their own.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: certificates.sh FOLDER [--days N] [ROLE ...]

Makes FOLDER/ca.pem and ca.key unless both are there, then FOLDER/ROLE.pem and ROLE.key for every ROLE: stage, store,
driver, operator (all four when none is given). stage/JOB is a stage of that job only; its files are named stage-JOB.
Certificates are replaced as a whole, so that services that run take them up (docs/security.md).

  --days N    how long certificates are valid (default 365; 0: they have expired already, for tests)
TEXT
}

stop() { # message
  echo "certificates.sh: $1" >&2
  exit 2
}

folder='' days=365 roles=()
while [ $# -gt 0 ]; do
  case $1 in
  --days)
    [[ ${2:-} =~ ^[0-9]+$ ]] || stop "--days needs a number, not '${2:-}'"
    days=$2
    shift
    ;;
  --help | -h)
    usage
    exit 0
    ;;
  -*) stop "unknown option '$1'" ;;
  *) if [ -z "$folder" ]; then folder=$1; else roles+=("$1"); fi ;;
  esac
  shift
done
[ -n "$folder" ] || { usage >&2; exit 2; }
[ ${#roles[@]} -gt 0 ] || roles=(stage store driver operator)
for role in "${roles[@]}"; do
  [[ $role =~ ^(stage|store|driver|operator|stage/[A-Za-z0-9._-]+)$ ]] ||
    stop "'$role' is no role: it must be stage, stage/JOB, store, driver or operator"
done
command -v openssl >/dev/null || stop "openssl is missing: apt-get install openssl"

umask 077
mkdir -p "$folder"
work=$(mktemp -d "$folder/.making.XXXXXX")
trap 'rm -rf "$work"' EXIT

quietly() { # command...: what it says is heard only if it fails
  "$@" 2>"$work/said" || {
    cat "$work/said" >&2
    stop "openssl failed"
  }
}

make_key() { # file
  quietly openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

if [ ! -e "$folder/ca.key" ] && [ ! -e "$folder/ca.pem" ]; then
  make_key "$work/ca.key"
  quietly openssl req -new -x509 -key "$work/ca.key" -days $((days < 3650 ? 3650 : days + 1)) -sha256 \
    -out "$work/ca.pem" -subj "/CN=Ballast authority $(openssl rand -hex 4)" \
    -addext 'basicConstraints=critical,CA:TRUE' -addext 'keyUsage=critical,keyCertSign,cRLSign'
  mv "$work/ca.key" "$work/ca.pem" "$folder/"
fi
for half in key pem; do
  [ -e "$folder/ca.$half" ] || stop "$folder has only ca.$([ $half = key ] && echo pem || echo key): \
put ca.$half beside it, or take another folder for an authority of its own"
done

for role in "${roles[@]}"; do
  name=${role/\//-}
  make_key "$work/$name.key"
  quietly openssl req -new -key "$work/$name.key" -subj "/CN=ballast ${role/\// of }" -out "$work/request.pem"
  cat >"$work/extensions" <<TEXT
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = URI:ballast://$role, DNS:${role%%/*}.ballast
TEXT
  quietly openssl x509 -req -in "$work/request.pem" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -sha256 -days "$days" \
    -set_serial "0x$(openssl rand -hex 15)" -extfile "$work/extensions" -out "$work/$name.pem"
  mv "$work/$name.key" "$work/$name.pem" "$folder/"
done
openssl x509 -in "$folder/ca.pem" -noout -checkend $((days * 86400)) >/dev/null 2>&1 ||
  echo "certificates.sh: $folder/ca.pem ends before $days days are over, and with it all certificates of it" >&2
echo "certificates.sh: $folder/ca.pem and certificates for: ${roles[*]}" >&2
