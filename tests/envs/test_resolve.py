"""Names of environments, and what a wrong one is answered with."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.resolve import resolve

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HOME_MADE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("HomeMade-v0", CartPoleEnv)
gymnasium.register("HomeMade-v10", CartPoleEnv)
number = 3

def make_pole(**kwargs):
    return CartPoleEnv(**kwargs)
"""


@pytest.fixture
def home_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "home_made.py").write_text(HOME_MADE)
    (tmp_path / "needy.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    registered = dict(gymnasium.registry)
    yield
    sys.modules.pop("home_made", None)
    gymnasium.registry.clear()
    gymnasium.registry.update(registered)


def test_gymnasium_ids() -> None:
    assert resolve("CartPole-v1")().spec.id == "CartPole-v1"
    assert resolve("CartPole")().spec.id == "CartPole-v1"
    assert resolve("phys2d/CartPole-v1")  # a namespace; making it needs jax


def test_keyword_arguments() -> None:
    assert resolve("FrozenLake-v1", map_name="8x8")().observation_space.n == 64
    assert resolve(dict, env=3)() == {"env": 3}


def test_callables_stay_as_they_are() -> None:
    assert resolve(CartPoleEnv) is CartPoleEnv


def test_an_environment_is_refused() -> None:
    with pytest.raises(UsageError, match="give what makes it"):
        resolve(CartPoleEnv())  # type: ignore[arg-type]


@pytest.mark.usefixtures("home_made")
def test_module_and_id() -> None:
    assert resolve("home_made:HomeMade-v0")().spec.id == "HomeMade-v0"


@pytest.mark.usefixtures("home_made")
def test_the_newest_version_is_the_highest_number() -> None:
    importlib.import_module("home_made")
    assert resolve("HomeMade")().spec.id == "HomeMade-v10"


@pytest.mark.usefixtures("home_made")
def test_factories() -> None:
    env = resolve("home_made:make_pole", render_mode="rgb_array")()
    assert isinstance(env, CartPoleEnv)
    assert env.render_mode == "rgb_array"


@pytest.mark.usefixtures("home_made")
def test_an_error_inside_the_users_module_is_shown_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        resolve("needy:make")


@pytest.mark.usefixtures("home_made")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPool-v1", "Nearest: CartPole-v1"),
        ("cartpole-v1", "Nearest: CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("", "not registered"),
        ("home_made:HomeMad-v0", "HomeMade-v0"),
        ("home_made:make_pool", "Nearest: make_pole"),
        ("home_made:number", "'number', a int; allowed: something in it to call"),
        ("home_mad:make_pole", "Nearest: home_made"),
        ("gymnasium.env:make", "no module 'gymnasium.env'.*gymnasium.envs"),
        ("folder/home_made.py:make_pole", "folder.my_env:make, not"),
        ("home_made.py:make_pole", "folder.my_env:make, not"),
        ("qqqqqqqq:make", "None is near"),
        (":make", "a module's name"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(name)


def test_packages_that_register_on_import() -> None:
    pytest.importorskip("minigrid")
    env = resolve("MiniGrid-Empty-5x5-v0")()
    assert env.spec.id == "MiniGrid-Empty-5x5-v0"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("MiniGrid-None-v0", "minigrid", "minigrid"),
        ("MiniHack-None-v0", "minihack", "nethack"),
        ("NetHackNone-v0", "nle", "nethack"),
        ("pettingzoo:none/none", "pettingzoo", "pettingzoo"),
        ("pettingzoo:classic/chess", "pettingzoo", "classic"),
        ("pettingzoo:mpe/simple", "mpe2", "mpe"),
        ("ALE/Breakout-v5", "ale_py", "atari"),
    ],
)
def test_missing_packages_name_their_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        resolve(name)
    assert (caught.value.package, caught.value.extra) == (package, extra)


def test_a_module_of_ones_own_that_wants_pettingzoo_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_meeting.py").write_text("from pettingzoo import ParallelEnv\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(MissingExtraError, match=r"fugu-rl\[pettingzoo\]"):
        resolve("own_meeting:Meeting")


def test_another_package_that_a_module_misses_is_told_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_import.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        resolve("own_import:Env")


@pytest.mark.filterwarnings("ignore")
def test_a_package_that_is_named_makes_the_bare_environment() -> None:
    pytest.importorskip("ale_py")
    if "ALE/Breakout-v5" not in gymnasium.registry:
        pytest.skip("ale-py registers nothing with a Gymnasium as old as this")
    assert resolve("ale_py:ALE/Breakout-v5")().observation_space.shape == (210, 160, 3)
    assert resolve("ALE/Breakout-v5")().observation_space.shape == (4, 84, 84)


class TestPettingZoo:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        for package in ("pettingzoo", "mpe2", "pygame", "pymunk"):
            pytest.importorskip(package)

    @pytest.mark.parametrize(
        "name",
        [
            "butterfly/knights_archers_zombies_v11",
            "butterfly/knights_archers_zombies",
            "mpe/simple_spread",
        ],
    )
    def test_parallel(self, name: str) -> None:
        env = resolve(f"pettingzoo:{name}")()
        assert not hasattr(env, "agent_iter")
        assert env.possible_agents

    def test_turn_by_turn_where_there_is_no_parallel_one(self) -> None:
        assert hasattr(resolve("pettingzoo:classic/tictactoe")(), "agent_iter")

    def test_keyword_arguments(self) -> None:
        assert len(resolve("pettingzoo:mpe/simple_spread", N=5)().possible_agents) == 5

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("butterfly/knights_archers_zombies_v10", "butterfly/knights_archers_zombies_v11"),
            ("butterflies/pistonball", "Nearest: pettingzoo:butterfly/pistonball_v6"),
            ("mpe/simple_spred", "pettingzoo:mpe/simple_spread_v3"),
            ("pistonball", "Nearest: pettingzoo:butterfly/pistonball_v6"),
            ("a-b/c", "which fugu envs pettingzoo: lists"),
        ],
    )
    def test_wrong_names(self, name: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            resolve(f"pettingzoo:{name}")

    def test_what_a_family_needs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in [name for name in sys.modules if name.startswith("pettingzoo.butterfly.")]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "pymunk", None)
        with pytest.raises(MissingExtraError, match=r"'pymunk'.*fugu-rl\[butterfly\]"):
            resolve("pettingzoo:butterfly/pistonball")()


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "collections:OrderedDict", "pettingzoo:mpe/simple"]
)
def test_what_it_gives_goes_to_other_processes(name: str) -> None:
    if name.startswith("pettingzoo:"):
        pytest.importorskip("mpe2")
    made: Any = pickle.loads(pickle.dumps(resolve(name)))()
    assert made is not None
