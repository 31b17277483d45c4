#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies what is made from the tables of commands: the manual, its Markdown form in docs, and completions for three
# shells, each tried in its shell where that is installed.
. "$(dirname "$0")/common.sh"

try python3 -B "$root/tools/check/docs.py" "$bin" docs/ballastctl.md docs/operations.md docs/exit-codes.md
equal "documentation: $err$out" 0 "$code"

commands=$("$ctl" --help | sed -n 's/^  \([a-z]*\) .*/\1/p')
page=$("$ctl" manual)
for command in $commands; do
  contains "manual page" ".SS $command" "$page"
  try "$ctl" "$command" --help
  equal "exit code of $command --help" 0 "$code"
done
for command in "leases list" "leases get" "leases watch" "leases revoke"; do
  contains "manual page" ".SS $command" "$page"
done
if command -v groff >/dev/null; then
  equal "what groff says" "" "$("$ctl" manual | groff -man -Tutf8 -ww 2>&1 >/dev/null)"
  for service in stage-service activation-store ballast-driver; do
    equal "what groff says" "" "$("$bin/$service" --describe man | groff -man -Tutf8 -ww 2>&1 >/dev/null)"
  done
fi

complete_bash() { # words of the command line; the last is being typed
  bash --norc --noprofile -c '
    source "$1"; shift
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _ballastctl; echo "${COMPREPLY[*]}"' bash "$work/completion" "$@"
}
"$ctl" completion bash >"$work/completion"
equal "completed command" "status" "$(complete_bash ballastctl statu)"
equal "completed commands of a group" "revoke" "$(complete_bash ballastctl leases rev)"
equal "completed flag" "--endpoint" "$(complete_bash ballastctl status --endp)"
equal "completed flag of a command of a group" "--from-revision" "$(complete_bash ballastctl leases watch --from)"
equal "completed value" "ndjson" "$(complete_bash ballastctl leases list -o nd)"
equal "completed value of a long flag" "sealed" "$(complete_bash ballastctl leases list --state se)"
equal "completed shell" "fish" "$(complete_bash ballastctl completion fi)"
touch "$work/job.yaml"
equal "completed file" "$work/job.yaml" "$(complete_bash ballastctl run "$work/jo")"
"$ctl" completion zsh >"$work/_ballastctl"
contains "zsh completion" "#compdef ballastctl" "$(head -1 "$work/_ballastctl")"
contains "the first completion of a shell that loads the file by then" "_bash_complete" "$(tail -1 "$work/_ballastctl")"
"$ctl" completion fish >"$work/ballastctl.fish"
if command -v zsh >/dev/null; then
  equal "what zsh says" "" "$(zsh -n "$work/_ballastctl" 2>&1)"
fi
if command -v fish >/dev/null; then
  equal "what fish says" "" "$(fish --no-execute "$work/ballastctl.fish" 2>&1)"
  contains "fish completion" "status" "$(fish -c "source $work/ballastctl.fish; complete -C 'ballastctl stat'")"
fi
refused 2 "no completion for 'tcsh'" "$ctl" completion tcsh
refused 2 "usage: ballastctl completion" "$ctl" completion
finish
