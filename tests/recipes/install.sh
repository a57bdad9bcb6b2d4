#!/usr/bin/env bash
# What recipes need beside the extra `dev`, in a virtual environment over .venv: some of it clashes
# with what is pinned there. What cannot be had is named, and its recipe is not tested.
set -u
cd "$(dirname "$0")/../.."
python=.venv-recipes/bin/python
test -x $python || .venv/bin/python -m venv .venv-recipes
site=$($python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
base=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$base')" > "$site/zz_base.pth"
pins=.venv-recipes/constraints.txt
grep -v '^mujoco==' constraints.txt > $pins

get() {
    $python -m pip install -q --disable-pip-version-check -c $pins "$@" ||
        echo "$* is absent, and what needs it is not tested"
}

get crafter
get vizdoom
get pyboy
get stable-retro
get magent2
get multi-agent-ale-py
get envpool
get gymnax six
get craftax
get 'mujoco>=3.17,<4' dm-control
get cffi filelock glfw moderngl
get --no-deps gym gym-notices gym3 procgen2
