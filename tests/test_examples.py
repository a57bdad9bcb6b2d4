"""Examples and benchmarks run as their pages say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn.utils import parameters_to_vector

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280
    )


@pytest.mark.parametrize("env", ["nethack", "expedition"])
def test_the_emulation_tour(env: str) -> None:
    done = run("examples/emulation_tour.py", "--env", env, "--steps", "100")
    assert done.returncode == 0, done.stderr
    assert "100 steps" in done.stdout
    assert "every row came back exactly" in done.stdout


def test_ppo_by_hand_balances_the_pole() -> None:
    done = run("examples/ppo_by_hand.py")
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert float(last.rpartition(" ")[2]) >= 400


class Steady(gymnasium.Env[Any, Any]):
    """Every step looks alike and earns 1, and an episode has five of them.

    With a discount of 0.9 a step is worth 10 if episodes are truncated; if they terminate, at most
    4.1.
    """

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, terminates: bool) -> None:
        self._terminates, self._steps = terminates, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        ends = self._steps == 5
        terminates = ends and self._terminates
        return np.ones(1, np.float32), 1.0, terminates, ends and not terminates, {}


def load(path: str) -> Any:
    """Import a script of the examples."""
    spec = importlib.util.spec_from_file_location("example_script", ROOT / "examples" / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score_of(*arguments: str) -> float:
    """Run examples/ppo.py; the score that it prints."""
    done = run("examples/ppo.py", *arguments)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^score: (\S+),", done.stdout, re.M)
    assert found is not None, done.stdout
    return float(found[1])


def test_ppo_is_one_short_file() -> None:
    text = (ROOT / "examples/ppo.py").read_text()
    assert len(text.splitlines()) < 350
    assert "fugu.training" not in text
    assert "fugu.algos" not in text


@pytest.mark.parametrize("env", ["cartpole", "CartPole-v1"])
def test_ppo_learns_cartpole(env: str) -> None:
    assert score_of("--env", env, "--seed", "1") >= 450


def test_ppo_with_a_learning_rate_of_0_stays_at_the_random_level() -> None:
    assert score_of("--learning-rate", "0", "--seed", "1", "--total-timesteps", "50_000") < 40


@pytest.mark.parametrize(("env", "random", "learned"), [("continuous", 0, 35), ("masked", 9, 15)])
def test_ppo_learns_continuous_actions_and_masked_choices(
    env: str, random: float, learned: float
) -> None:
    assert score_of("--env", env, "--total-timesteps", "20_000", "--learning-rate", "0") < random
    assert score_of("--env", env, "--total-timesteps", "100_000") >= learned


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ("spaces", "expected Discrete or Box actions; got Dict("),
        ("speaker_listener", "expected one group of agents; got speaker, listener"),
    ],
)
def test_ppo_says_what_it_cannot_train(env: str, reason: str) -> None:
    done = run("examples/ppo.py", "--env", env)
    assert done.returncode == 1
    assert done.stderr.startswith(f"--env: {reason}")


def test_equal_seeds_of_ppo_give_identical_weights() -> None:
    ppo = load("ppo.py")
    agents = [ppo.train(ppo.Settings(seed=seed, total_timesteps=8192))[0] for seed in (1, 1, 2)]
    first, again, other = (parameters_to_vector(agent.parameters()) for agent in agents)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# In segments of one step, every step is the last one.
@pytest.mark.parametrize(
    ("num_steps", "terminates", "lowest", "highest"),
    [(1, False, 9, 11), (16, False, 9, 11), (16, True, 2, 4)],
)
def test_ppo_bootstraps_truncated_episodes_and_segments(
    num_steps: int, terminates: bool, lowest: float, highest: float
) -> None:
    ppo = load("ppo.py")
    cfg = ppo.Settings(
        env=partial(Steady, terminates),
        num_envs=8,
        num_steps=num_steps,
        total_timesteps=8000 if num_steps == 1 else 16_000,
        gamma=0.9,
        num_minibatches=1,
    )
    agent, _ = ppo.train(cfg)
    assert lowest < agent(torch.ones(1, 1))[1].item() < highest


@pytest.mark.parametrize(("terminates", "lowest", "highest"), [(False, 9, 11), (True, 2, 4)])
def test_the_plain_script_bootstraps_truncated_episodes(
    terminates: bool, lowest: float, highest: float
) -> None:
    plain = load("cleanrl/ppo.py")
    agents = []

    class KeptAgent(plain.Agent):  # `train` returns the score alone
        def __init__(self, envs: Any) -> None:
            super().__init__(envs)
            agents.append(self)

    plain.Agent = KeptAgent
    name = f"Steady{terminates}-v0"
    gymnasium.register(name, entry_point=partial(Steady, terminates))
    plain.train(
        plain.Args(env_id=name, num_envs=4, num_steps=16, gamma=0.9, total_timesteps=10_000)
    )
    assert lowest < agents[0](torch.ones(1, 1))[1].item() < highest


@pytest.mark.parametrize("name", ["emulation", "import_time"])
def test_a_benchmark_states_its_claims_and_keeps_them(name: str, tmp_path: Path) -> None:
    """Whether they are met is not asserted: a busy machine must not break the build."""
    file = tmp_path / "rows.jsonl"
    done = run(f"benchmarks/{name}.py", "--quick", "--json", str(file))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows
    missed = [row for row in rows if row["met"] is False]
    assert done.returncode == int(bool(missed)), done.stderr
    for row in rows:
        assert f"claim {row['claim']}: " in done.stdout
        assert row["ratio"] is not None
        assert row["commit"]
