"""`from_hub`: the policies of a shared run, ready to act."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.algos.algorithm import PolicyFactory
from fugu.algos.settings import Config
from fugu.core.errors import UsageError
from fugu.export.engines import make_engine
from fugu.export.player import LoadedPolicy
from fugu.hub.contents import MOST_BYTES
from fugu.hub.places import find_place
from fugu.hub.pull import fetch
from fugu.policies.policy import Policy, make_policy
from fugu.store.run import Run
from fugu.training.evaluate import (
    COPIES,
    MAX_EPISODE_STEPS,
    Evaluation,
    Players,
    load_policies,
    play,
)
from fugu.training.inputs import RunInputs
from fugu.vector import Vector, make
from fugu.vector.recording import record

# What it takes to act: nothing of the optimiser, of experience or of environments.
_NEEDED = re.compile(r"config\.json|run\.json|checkpoints/.*/(policy_\d+\.safetensors|\w+\.json)")


@dataclass(frozen=True)
class Agent:
    """Policies that act, and the settings they were trained with.

    Attributes:
        config: Settings of the run.
        policies: One for each group of agents.
        inputs: What settings cannot say.
    """

    config: Config
    policies: list[Policy]
    inputs: RunInputs

    def make(self, num_envs: int = 1, **options: Any) -> Vector:
        """Copies of the environment it was trained on; options are those of `fugu.make`."""
        given = {"env_kwargs": self.config.env_kwargs, **self.config.train.emulation, **options}
        return make(self.inputs.env_of(self.config.env), num_envs, **given)

    def players(self, vec: Vector, *, greedy: bool = True, seed: int = 0) -> Players:
        """Something to call with a batch for the actions that `vec.send` takes."""
        return Players(self.policies, vec, seed, greedy=greedy)

    def load(
        self, engine: str = "torch", *, group: str | None = None, seed: int = 0
    ) -> LoadedPolicy:
        """A policy behind `act(observation, state)`, as `fugu.export.load` gives one.

        Args:
            engine: What runs it, such as torch, onnx or native.
            group: Which agents' policy, if there are several.
            seed: Of the policy's own generator.
        """
        with self.make(1, backend="serial") as vec:
            names = [each.name for each in vec.groups]
            if group not in (names if len(names) > 1 else [None, *names]):
                raise UsageError(f"group: given {group!r}; allowed: {', '.join(names)}.")
            index = names.index(group) if group is not None else 0
            layout = vec.groups[index].observation_layout
        return LoadedPolicy(make_engine(engine, self.policies[index], layout), engine, seed)

    def evaluate(
        self,
        episodes: int = 100,
        *,
        greedy: bool = True,
        seed: int = 0,
        max_episode_steps: int = MAX_EPISODE_STEPS,
    ) -> Evaluation:
        """Play episodes, as `fugu.evaluate` does."""
        with self.make(min(COPIES, episodes)) as vec:
            return play(
                self.policies,
                vec,
                episodes,
                greedy=greedy,
                seed=seed,
                max_episode_steps=max_episode_steps,
            )

    def film(self, out: Path, *, steps: int, height: int | None = None, seed: int = 0) -> Path:
        """A video or a GIF of how it plays."""
        with self.make(1, backend="serial") as vec:
            players = self.players(vec, seed=seed)
        return record(
            self.inputs.env_of(self.config.env),
            out,
            policy=players,
            steps=steps,
            height=height,
            seed=seed,
            env_kwargs=self.config.env_kwargs,
        )


def load_agent(run: Run, checkpoint: Path | None = None, inputs: RunInputs | None = None) -> Agent:
    """The agent of a run, from a checkpoint or its last one."""
    inputs = inputs or RunInputs()
    config, policies = load_policies(run, checkpoint, inputs)
    return Agent(config, policies, inputs)


def from_hub(
    repo: str | Path,
    *,
    revision: str | None = None,
    trust: bool = False,
    env: Callable[..., Any] | None = None,
    policy_factory: PolicyFactory | None = None,
    max_bytes: int = MOST_BYTES,
    token: str | None = None,
) -> Agent:
    """The policies of a shared run, verified, without its experience.

    Args:
        repo: `user/name` of the Hub, or a folder that starts with `./`, `../`, `~` or `/`.
        revision: A branch, tag or commit.
        trust: Take all settings of the run: an environment that is a Python factory or a native
            library, which is then imported and called, and any arguments of it.
        env: What the run was trained on, to use instead of what it names.
        policy_factory: As of `fugu.train`, if it was given there.
        max_bytes: The most that may be downloaded.
        token: Of the Hub; by default that of `HF_TOKEN` or `hf auth login`.
    """
    place = find_place(repo, revision, token)
    inputs = RunInputs(env, policy_factory or make_policy, trust=trust)
    with tempfile.TemporaryDirectory(prefix="fugu-hub-") as folder:
        fetch(
            place,
            Path(folder),
            wanted=lambda name: bool(_NEEDED.fullmatch(name)),
            trust=trust,
            given=env is not None,
            most=max_bytes,
        )
        return load_agent(Run(folder), inputs=inputs)
