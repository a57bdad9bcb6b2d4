"""`fugu convert-config`: PufferLib's INI files train here as they did there."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fugu.algos.ppo import PPOConfig
from fugu.cli.convert_config import check
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.core.intervals import intervals_of
from fugu.sweep.ranges import Range, read_range, read_tables
from fugu_pufferlib.config import Conversion, convert
from fugu_pufferlib.config_tables import ABOVE_ZERO, RENAMED

CONFIGS = Path(__file__).parents[3] / ".venv-pufferlib/lib/python3.11/site-packages/pufferlib"


def read_ranges(tree: dict[str, Any]) -> list[Range]:
    return [read_range(path, table) for path, table in read_tables(tree).items()]


BREAKOUT = """
[base]
package = ocean
env_name = puffer_breakout
policy_name = Policy
rnn_name = Recurrent

[vec]
num_envs = 4
backend = Multiprocessing

[env]
num_envs = 8
frameskip = 4
brick_color = 3

[policy]
hidden_size = 32
[rnn]
input_size = 32
hidden_size = 16

[train]
total_timesteps = 90_000_000
gae_lambda = 0.75
minibatch_size = 1024
max_minibatch_size = 512
bptt_horizon = 64
anneal_lr = true
adam_beta1 = 0.89
wings = 2

[sweep]
metric = score

[sweep.train.total_timesteps]
distribution = log_normal
min = 3e7
max = 2e8
mean = 8e7
scale = auto

[sweep.env.frameskip]
distribution = int_uniform
min = 1
max = 8
mean = 4

[sweep.train.adam_eps]
distribution = log_normal
min = 1e-14
max = 1e-4
"""
ADAM_SWEEP = """
[sweep.train.adam_eps]
distribution = log_normal
min = 1e-14
max = 1e-4
"""
MINE = """
[base]
package = my_package
env_name = mine
policy_name = MyPolicy

[vec]
num_envs = 2
backend = Serial
batch_size = auto

[env]
height = 3
name = tall

[train]
device = cpu
seed = 7
optimizer = adam
batch_size = 512
minibatch_size = 128
bptt_horizon = 16
update_epochs = 2
prio_alpha = 0.0
"""
MODULE = """
import numpy as np
from gymnasium import spaces
import fugu_pufferlib as pufferlib

class Mine(pufferlib.PufferEnv):
    def __init__(self, height=1, name="", num_agents=4, buf=None, seed=0):
        assert (height, name) == (3, "tall")
        self.single_observation_space = spaces.Box(0, 1, (height,))
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = num_agents
        super().__init__(buf)

    def reset(self, seed=None):
        self.time = 0
        return self.observations, []

    def step(self, actions):
        self.time += 1
        self.rewards[:] = actions
        self.terminals[:] = self.time % 5 == 0
        return self.observations, self.rewards, self.terminals, self.truncations, []

def make_env(**kwargs):
    return pufferlib.to_fugu(Mine, **kwargs)
"""


def why(found: Conversion, source: str) -> tuple[str, str]:
    (note,) = [note for note in found.notes if note.source == source]
    return note.target, note.why


def test_settings_keep_their_meaning() -> None:
    found = convert(BREAKOUT)
    assert found.env == "breakout"
    assert found.settings["vec"] == {"num_envs": 32}
    assert found.settings["env_kwargs"] == {"frame_skip": 4}
    assert found.settings["policy"] == {"core": "lstm", "hidden_size": 16}
    train = found.settings["train"]
    assert train["minibatches"] == 32 * 64 / 1024
    given = {"total_steps": 90_000_000, "lambda": 0.75, "microbatch": 512, "schedule": "cosine"}
    theirs = {"gamma": 0.995, "learning_rate": 0.015, "optimiser": "muon", "alpha": 0.8}
    fixed = {"reward_clip": 1.0, "normalise_rewards": False, "final_entropy_coefficient": "none"}
    for each in (given, theirs, fixed):
        assert {name: train[name] for name in each} == each
    assert {"train.gamma", "train.optimiser"} <= {*found.assumed}
    assert "train.lambda" not in found.assumed


def test_what_is_dropped_or_renamed_is_told_with_the_reason() -> None:
    found = convert(BREAKOUT)
    assert why(found, "train.gae_lambda")[0] == "train.lambda"
    assert why(found, "env.frameskip")[0] == "env_kwargs.frame_skip"
    assert "breakout: given a setting 'brick_color'" in why(found, "env.brick_color")[1]
    assert why(found, "train.adam_beta1") == ("train.momentum", "muon's momentum")
    assert why(found, "train.wings") == ("", "PufferLib 3.0 does not read it, nor does fugu")
    assert why(found, "vec.backend")[0] == ""
    assert "reset where episodes end" in why(found, "base.rnn_name")[1]
    told = {note.source for note in found.notes}
    assert {"rnn.input_size", "sweep.metric", "sweep.train.adam_eps", "base.package"} <= told


def test_settings_of_adam_go_to_the_optimiser_that_the_file_names() -> None:
    muon, adam = (
        convert(f"[train]\noptimizer = {name}\nadam_eps = 1e-7\n" + ADAM_SWEEP)
        for name in ("muon", "adam")
    )
    assert muon.settings["train"]["momentum"] == 0.95
    assert why(muon, "train.adam_eps") == ("", "muon has no such setting")
    assert not muon.ranges
    theirs = {"adam_beta1": 0.95, "adam_beta2": 0.999, "adam_eps": 1e-7}
    assert {name: adam.settings["train"][name] for name in theirs} == theirs
    assert "momentum" not in adam.settings["train"]
    (swept,) = read_ranges(adam.ranges)
    assert (swept.path, swept.low, swept.high) == ("train.adam_eps", 1e-14, 1e-4)


def test_ranges_are_those_of_a_sweep() -> None:
    steps, skip = read_ranges(convert(BREAKOUT).ranges)
    assert steps == Range("train.total_steps", 3e7, 2e8, log=True, integer=steps.integer)
    assert skip == Range("env_kwargs.frame_skip", 1, 8, integer=True)


def test_a_range_begins_above_a_number_that_is_refused() -> None:
    section = "[sweep.train.max_grad_norm]\ndistribution = uniform\nmin = 0.0\nmax = 5.0\n"
    found = convert(section)
    (norm,) = read_ranges(found.ranges)
    assert (norm.path, norm.low, norm.high) == ("train.max_gradient_norm", 0.05, 5.0)
    assert "since 0 is refused" in why(found, "sweep.train.max_grad_norm")[1]
    names = [path.removeprefix("train.") for path in RENAMED.values()]
    intervals = intervals_of(PPOConfig)
    open_ends = {f"train.{name}" for name in names if name in intervals and intervals[name].above}
    assert open_ends | {"train.adam_eps"} == ABOVE_ZERO


def test_a_converted_file_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "breakout.ini", tmp_path / "out.toml"
    file.write_text(BREAKOUT)
    assert main(["convert-config", str(file), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "train.gae_lambda -> train.lambda" in said
    assert f"fugu train breakout --config {out}" in said
    assert tomllib.loads(out.read_text())["train"]["horizon"] == 64
    sweep = str(tmp_path / "out.sweep.toml")
    assert main(["sweep", "breakout", "--config", sweep, "--dry-run"]) == 0
    assert "env_kwargs.frame_skip: integers from 1 to 8" in capsys.readouterr().out
    small = ["--train.total-steps", "6000", "--run.folder", str(tmp_path / "runs"), "--quiet"]
    assert main(["train", "breakout", "--config", str(out), *small]) == 0
    assert "finished after 6,1" in capsys.readouterr().out


def test_an_environment_of_ones_own_trains_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_puffer_env.py").write_text(MODULE)
    Path("mine.ini").write_text(MINE)
    assert main(["convert-config", "mine.ini"]) == 0
    assert "fugu train ENV --config mine.toml" in capsys.readouterr().out
    found = tomllib.loads(Path("mine.toml").read_text())
    assert found["env_kwargs"] == {"height": 3, "name": "tall"}
    assert (found["vec"], found["seed"]) == ({"num_envs": 2, "backend": "serial"}, 7)
    assert (found["train"]["rows"], found["train"]["minibatches"]) == (32, 4)
    command = ["train", "own_puffer_env:make_env", "--config", "mine.toml", "--quiet"]
    assert main([*command, "--train.total-steps", "1500"]) == 0
    said = capsys.readouterr().out
    assert "finished after 1,5" in said
    assert float(said.partition("mean return ")[2].split()[0]) > 3.5, "guessing earns 2.5"


def test_what_cannot_be_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.ini"
    assert main(["convert-config", str(file)]) == 1
    file.write_text("no section = 1")
    assert main(["convert-config", str(file)]) == 1
    assert "no INI file" in capsys.readouterr().err
    file.write_text("[train]\nminibatch_size = many")
    assert main(["convert-config", str(file)]) == 1
    assert "train.minibatch_size: given 'many'" in capsys.readouterr().err
    file.write_text("[train]\ngamma = 2")
    assert main(["convert-config", str(file)]) == 1
    assert "gamma: given 2" in capsys.readouterr().err
    assert not file.with_suffix(".toml").exists()


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.ini"
    file.write_text(MINE)
    file.with_suffix(".toml").write_text("mine")
    assert main(["convert-config", str(file)]) == 1
    assert "--force" in capsys.readouterr().err
    assert file.with_suffix(".toml").read_text() == "mine"
    assert main(["convert-config", str(file), "--force"]) == 0
    assert "rows = 32" in file.with_suffix(".toml").read_text()


@pytest.mark.skipif(not CONFIGS.exists(), reason="PufferLib is not installed; make peers does it")
def test_every_file_that_pufferlib_has_is_converted() -> None:
    files = sorted(CONFIGS.glob("config/**/*.ini"))
    assert len(files) > 60
    for file in files:
        found = convert(file.read_text())
        check(found)
        read_ranges(found.ranges)
        assert found.notes


def test_a_wrong_value_is_refused_here_and_not_by_the_trainer() -> None:
    with pytest.raises(UsageError, match="precision"):
        check(convert("[train]\nprecision = float8"))
