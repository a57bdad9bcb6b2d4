#!/usr/bin/env bash
# PufferLib 3.0.0 in .venv-pufferlib, for benchmarks. Its set-up downloads things that vectors do not
# need and its switch against that is broken, so the Python files are taken from its source package
# as published. Where that fails, benchmarks name it as absent.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-pufferlib
[ -f $venv/.installed ] && exit 0
python3 -m venv $venv
$venv/bin/pip install -q --disable-pip-version-check "setuptools<81" wheel "numpy<2" \
    gymnasium==0.29.1 gym==0.23 psutil rich rich_argparse imageio
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TMPDIR=$work $venv/bin/pip download -q --no-deps --no-build-isolation --no-clean -d "$work/out" \
    pufferlib==3.0.0 > /dev/null 2>&1 || true
package=$(find "$work" -maxdepth 3 -type d -name pufferlib | head -1)
if [ -z "$package" ]; then
    echo "PufferLib's source package was not found: it will be absent from benchmarks"
    rm -rf $venv
    exit 0
fi
cp -r "$package" "$($venv/bin/python -c 'import site; print(site.getsitepackages()[0])')"
if ! $venv/bin/python -c "import pufferlib.vector, pufferlib.emulation" > /dev/null 2>&1; then
    echo "PufferLib does not import here: it will be absent from benchmarks"
    rm -rf $venv
    exit 0
fi
touch $venv/.installed
