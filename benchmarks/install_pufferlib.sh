#!/usr/bin/env bash
# PufferLib 3.0.0 in .venv-pufferlib, for benchmarks: its Python files as published, its advantage
# kernel and its C breakout, built with its own flags. Its set-up downloads things that these do not
# need and its switch against that is broken, so those lines are taken out, and CUDA with them.
# Where that fails, benchmarks name it as absent, or only its trainer if only the build fails.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$PWD/.venv-pufferlib
[ -f "$venv/.installed-trainer" ] && exit 0
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check "setuptools<81" wheel "numpy<2" \
    gymnasium==0.29.1 gym==0.23 psutil rich rich_argparse imageio
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Fails for want of torch, after it has unpacked the sources; --no-clean leaves them there.
TMPDIR=$work "$venv/bin/pip" download -q --no-deps --no-build-isolation --no-clean -d "$work/out" \
    pufferlib==3.0.0 > /dev/null 2>&1 || true
package=$(find "$work" -maxdepth 3 -type d -name pufferlib | head -1)
if [ -z "$package" ]; then
    echo "PufferLib's source package was not found: it will be absent from benchmarks"
    rm -rf "$venv"
    exit 0
fi
site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
rm -rf "$site/pufferlib"
cp -r "$package" "$site"
imports() {  # in another folder, since importing PufferLib leaves a link in the present one
    (cd "$work" && "$venv/bin/python" -c "$1" > /dev/null 2>&1)
}
if ! imports "import pufferlib.vector, pufferlib.emulation"; then
    echo "PufferLib does not import here: it will be absent from benchmarks"
    rm -rf "$venv"
    exit 0
fi
touch "$venv/.installed"

build() {
    # heavyball: newer ones want a NumPy that PufferLib does not take.
    "$venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 heavyball==1.7.2 \
        pyro-ppl pynvml "numpy<2" ninja || return 1
    cd "$(dirname "$package")" || return 1
    sed -i -e "s/^\( \+\)download_\(raylib\|box2d\)(.*/\1pass/" \
        -e "s#glob.glob('pufferlib/ocean/\*\*/binding.c', recursive=True)#['pufferlib/ocean/breakout/binding.c']#" \
        -e 's/if shutil.which("nvcc")/if False/' setup.py
    "$venv/bin/python" setup.py -q build_ext --inplace > build.log 2>&1 ||
        { tail -5 build.log; return 1; }
    cp pufferlib/_C.*.so "$site/pufferlib/"
    cp pufferlib/ocean/breakout/binding.*.so "$site/pufferlib/ocean/breakout/"
}
if (build) && imports "import heavyball, pufferlib.pufferl, pufferlib.ocean.breakout.breakout"; then
    touch "$venv/.installed-trainer"
else
    echo "PufferLib's trainer was not built: it will be absent from benchmarks of training"
fi
