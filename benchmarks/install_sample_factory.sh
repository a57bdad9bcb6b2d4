#!/usr/bin/env bash
# Sample Factory 2.1.1 in .venv-sample-factory, for benchmarks of training: it wants an older
# Gymnasium and NumPy than other peers. Where that fails, benchmarks name it as absent.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-sample-factory
[ -f $venv/.installed ] && exit 0
[ -x $venv/bin/python ] || python3 -m venv $venv
if $venv/bin/pip install -q --disable-pip-version-check sample-factory==2.1.1 torch==2.13.0 \
    gymnasium==0.29.1 "numpy<2" && $venv/bin/python -c "import sample_factory.train"; then
    touch $venv/.installed
else
    echo "Sample Factory was not installed: it will be absent from benchmarks"
    rm -rf $venv
fi
