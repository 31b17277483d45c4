#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies the front door with stubs for the package system, cmake and ctest: what is missing is named and installed as root
# or with sudo, nothing happens twice, and without the right to install it stops with exit code 2; a test that fails is
# named and is not run again, and a build with sanitizers that fails is a failure; arguments that a command has not are
# refused; when it is killed, so are the tests.
. "$(dirname "$0")/common.sh"

mkdir "$work/tree" "$work/stubs"
cp "$root/ballast" "$root/packages.txt" "$work/tree/"
mkdir -p "$work/tree/tools/check" "$work/tree/build/bin"
front=$work/tree/ballast

stub() { # name, body
  printf '#!/bin/bash\n%s\n' "$2" >"$work/stubs/$1"
  chmod +x "$work/stubs/$1"
}

# The stub of dpkg-query knows the packages in $work/installed; apt-get adds to them, and keeps a record.
stub dpkg-query "sed 's/^/ii  /' '$work/installed'"
stub apt-get "echo apt-get \"\$@\" >>'$work/record'
case \$1 in install) shift; for word; do case \$word in -*) ;; *) echo \$word >>'$work/installed' ;; esac; done ;; esac"
stub cmake "echo cmake \"\$@\" >>'$work/record'"
stub sudo 'exit 1'
stub id 'echo 1000'
ballast() {
  try env PATH="$work/stubs:$PATH" "$front" "$@"
}

try "$front" help
equal "exit code of help" 0 "$code"
contains "help" "demo" "$out"
refused 2 "unknown command 'biuld'" "$front" biuld
refused 2 "usage" "$front"
refused 2 "test has no option '--fast'" "$front" test --fast
refused 2 "build takes no argument 'release'" "$front" build release
refused 2 "soak takes no argument 'kill'" "$front" soak bits kill
refused 2 "run needs a job: ./ballast run JOB.yaml" "$front" run
refused 2 "nothing.yaml: no such file" "$front" run nothing.yaml --local
try "$front" soak --help
equal "exit code of soak --help" 0 "$code"
contains "help" "soak [NAME]" "$out"

every=$(sed -e '/^#/d' -e '/^check:/d' -e '/^ *$/d' "$root/packages.txt")
grep -v -e libyaml-dev -e ninja-build <<<"$every" >"$work/installed"
: >"$work/record"
ballast build
equal "exit code without the right to install" 2 "$code"
contains "message" "missing packages: libyaml-dev ninja-build" "$err"
contains "message" "sudo apt-get install libyaml-dev ninja-build" "$err"
equal "record without the right to install" "" "$(cat "$work/record")"

stub id 'echo 0'
touch "$work/tree/build/build.ninja"
ballast build
equal "exit code as root" 0 "$code"
contains "record as root" "install -q -y --no-install-recommends libyaml-dev ninja-build" "$(cat "$work/record")"
contains "record as root" "cmake --build --preset release" "$(cat "$work/record")"

: >"$work/record"
ballast build
equal "exit code of the second start" 0 "$code"
equal "installations of the second start" 0 "$(grep -c apt-get "$work/record")"

head -n -1 "$work/installed" >"$work/fewer" && mv "$work/fewer" "$work/installed"
stub id 'echo 1000'
stub sudo '[ "$1" = -n ] && exit 0; exec "$@"'
ballast build
equal "exit code with sudo" 0 "$code"

stub apt-get 'exit 100'
head -n -1 "$work/installed" >"$work/fewer" && mv "$work/fewer" "$work/installed"
ballast build
equal "exit code when apt-get fails" 1 "$code"
contains "message" "apt-get could not install them" "$err"

# ---- tests
sed -e '/^#/d' -e 's/^check: *//' -e '/^ *$/d' "$root/packages.txt" >"$work/installed"
stub ctest "echo ctest \"\$@\" >>'$work/record'
while [ \$# -gt 1 ]; do [ \$1 = --preset ] && preset=\$2; [ \$1 = --output-junit ] && results=\$2; shift; done
cp '$work/results-'\$preset \"\$results\""
results() { # preset, failures, cases
  printf '<testsuite name="x"\n\ttests="3"\n\tfailures="%s"\n\tdisabled="0"\n\tskipped="1"\n>\n%b</testsuite>\n' "$2" "$3" \
    >"$work/results-$1"
}
results release 0 ''
results asan 0 ''
: >"$work/record"
ballast test
equal "exit code of test" 0 "$code"
contains "totals" "4 passed, 0 failed, 2 skipped" "$out"
contains "builds" "cmake --preset release -DBALLAST_WERROR=ON" "$(cat "$work/record")"
contains "builds" "cmake --build --preset asan" "$(cat "$work/record")"

results release 1 '\t<testcase name="e2e/good" classname="e2e/good" time="1" status="run">\n\t</testcase>
\t<testcase name="e2e/bad" classname="e2e/bad" time="1" status="fail">\n\t\t<failure message=""/>\n\t</testcase>\n'
: >"$work/record"
ballast test
equal "exit code of test with a failure" 1 "$code"
contains "totals with a failure" "3 passed, 1 failed, 2 skipped" "$out"
contains "its name" "failed in release: e2e/bad" "$err"
equal "runs of tests, of two presets" 2 "$(grep -c '^ctest' "$work/record")"

results soak 0 ''
: >"$work/record"
ballast soak bits
equal "exit code of soak" 0 "$code"
contains "tests of that name" "ctest --preset soak -j" "$(cat "$work/record")"
contains "tests of that name" "-R bits" "$(cat "$work/record")"
equal "runs of tests, of one preset" 1 "$(grep -c '^ctest' "$work/record")"

results release 0 ''
stub cmake 'case "$*" in *--build*asan*) echo wrong; exit 1 ;; esac'
ballast test
equal "exit code of test where sanitizers cannot be built" 1 "$code"
contains "totals without a build" "2 passed, 1 failed, 1 skipped" "$out"
contains "what fails" "failed in asan: it cannot be built" "$err"

# ---- a killed front door
stub ctest "'$root/tests/isolate.sh' sleep 7654321"
sleeps() {
  ps -e -o args= | grep -q '^sleep 7654321'
}
await() { # "" or not
  for _ in $(seq 200); do
    if $1 sleeps; then return; fi
    sleep 0.05
  done
}
not() {
  ! "$@"
}
PATH="$work/stubs:$PATH" "$front" soak bits >/dev/null 2>&1 &
killed=$!
await ""
equal "the test runs" 0 "$(sleeps; echo $?)"
kill -KILL $killed
wait $killed 2>/dev/null
await not
equal "the test runs when the front door was killed" 1 "$(sleeps; echo $?)"
finish
