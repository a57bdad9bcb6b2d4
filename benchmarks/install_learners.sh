#!/usr/bin/env bash
# Peers of the other algorithms: SheepRL (Dreamer) and TRL (GRPO) in .venv-learners, d3rlpy (Decision
# Transformer), which wants an older Gymnasium, in .venv-d3rlpy. Benchmarks name those that are absent.
set -euo pipefail
cd "$(dirname "$0")/.."
install() { # venv, module to try, packages
    local venv=$1 module=$2
    shift 2
    [ -f "$venv/.installed" ] && return
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    if "$venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 "$@" &&
        "$venv/bin/python" -c "import $module"; then
        touch "$venv/.installed"
    else
        echo "$* was not installed: it will be absent from benchmarks"
        rm -rf "$venv"
    fi
}
install .venv-d3rlpy d3rlpy d3rlpy==2.8.1
install .venv-learners "sheeprl.cli, trl" sheeprl==0.8.4 trl==1.16.0
