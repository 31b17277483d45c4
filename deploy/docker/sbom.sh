#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The bill of materials of an image, as SPDX 2.3 in its tag-value form: Ballast, every package of Debian, and NVIDIA's
# libraries where they were copied in. The same image gives the same text. Written to /usr/share/ballast/sbom.spdx; the
# version of Ballast is in the file beside it.
set -eu
version=$(cat /usr/share/ballast/version)

package() { # name, id, version, licence, purl or nothing
  printf 'PackageName: %s\nSPDXID: SPDXRef-%s\nPackageVersion: %s\n' "$1" "$2" "$3"
  printf 'PackageDownloadLocation: NOASSERTION\nFilesAnalyzed: false\n'
  printf 'PackageLicenseConcluded: NOASSERTION\nPackageLicenseDeclared: %s\nPackageCopyrightText: NOASSERTION\n' "$4"
  [ -z "${5:-}" ] || printf 'ExternalRef: PACKAGE-MANAGER purl %s\n' "$5"
  printf '\n'
}

packages() { # licences are in /usr/share/doc/PACKAGE/copyright
  package ballast Ballast "$version" Apache-2.0
  dpkg-query -W -f='${Package} ${Version} ${Architecture}\n' | LC_ALL=C sort | while read -r name number architecture; do
    id=$(printf '%s' "$name" | tr -c 'A-Za-z0-9.\n-' -)
    escaped=$(printf '%s@%s' "$name" "$number" | sed -e 's/+/%2B/g' -e 's/:/%3A/g' -e 's/~/%7E/g')
    package "$name" "Debian-$id" "$number" NOASSERTION "pkg:deb/debian/$escaped?arch=$architecture"
  done
  for file in /usr/lib/libnccl.so.* /usr/lib/libcublasLt.so.* /usr/lib/libcudnn*.so.* /usr/lib/libnvrtc*.so.*; do
    if [ -f "$file" ]; then
      name=${file##*/}
      package "${name%%.so.*}" "NVIDIA-$(printf '%s' "${name%%.so.*}" | tr _ -)" "${name##*.so.}" LicenseRef-NVIDIA
    fi
  done
}

{
  text=$(packages)
  printf 'SPDXVersion: SPDX-2.3\nDataLicense: CC0-1.0\nSPDXID: SPDXRef-DOCUMENT\nDocumentName: ballast-%s\n' "$version"
  printf 'DocumentNamespace: urn:ballast:sbom:%s\n' "$(printf '%s' "$text" | sha256sum | cut -d ' ' -f 1)"
  printf 'Creator: Tool: deploy/docker/sbom.sh of %s\nCreated: 1970-01-01T00:00:00Z\n\n' "$version"
  if printf '%s' "$text" | grep -q LicenseRef-NVIDIA; then
    printf 'LicenseID: LicenseRef-NVIDIA\nLicenseName: NVIDIA\nExtractedText: <text>/usr/share/doc/nvidia</text>\n\n'
  fi
  printf '%s\n\nRelationship: SPDXRef-DOCUMENT DESCRIBES SPDXRef-Ballast\n' "$text"
  printf '%s\n' "$text" | sed -n 's/^SPDXID: \(SPDXRef-[DN].*\)/Relationship: SPDXRef-Ballast DEPENDS_ON \1/p'
} >/usr/share/ballast/sbom.spdx
