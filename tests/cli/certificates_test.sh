#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies deploy/certificates.sh: it makes an authority and certificates of it, keeps an authority that is there, never
# replaces half of one, says what openssl says when that fails, and that certificates cannot outlive their authority.
. "$(dirname "$0")/common.sh"
command -v openssl >/dev/null || skip "no openssl"
make=$root/deploy/certificates.sh
cd "$work" || exit 1

try "$make" own stage
equal "a new authority" 0 "$code"
try openssl verify -CAfile own/ca.pem own/stage.pem
equal "its certificate" "own/stage.pem: OK" "$out"
before=$(cat own/ca.pem own/ca.key)
try "$make" own driver stage/one
equal "more of an authority that is there" 0 "$code"
equal "it stays" "$before" "$(cat own/ca.pem own/ca.key)"
[ -f own/stage-one.key ] || fault "no key of stage/one"

for half in pem key; do
  mkdir "half-$half"
  cp "own/ca.$half" "half-$half/"
  try "$make" "half-$half" stage
  equal "only ca.$half" 2 "$code"
  contains "only ca.$half" "half-$half has only ca.$half" "$err"
  equal "nothing was made" "ca.$half" "$(ls "half-$half")"
done

mkdir wrong
echo nonsense >wrong/ca.pem
cp own/ca.key wrong/
try "$make" wrong stage
[ "$code" != 0 ] || fault "an authority of nonsense: exit code 0"
contains "an authority of nonsense" "wrong/ca.pem" "$err"
[ ! -e wrong/stage.pem ] || fault "a certificate by an authority of nonsense"

try "$make" own --days 4000 stage
equal "longer than the authority" 0 "$code"
contains "longer than the authority" "own/ca.pem ends before 4000 days are over" "$err"
try "$make" long --days 4000 stage
equal "an authority that is long enough" "" "$(grep ends <<<"$err")"
finish
