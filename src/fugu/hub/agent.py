"""`from_hub`: load the policies of a shared run, ready to act."""

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
from fugu.envs.contract import AgentGroup
from fugu.export.engines import make_engine
from fugu.export.player import LoadedPolicy
from fugu.hub.pull import fetch
from fugu.hub.repositories import MAX_BYTES, open_repository
from fugu.policies.policy import Policy, make_policy
from fugu.store.run import Run
from fugu.training.evaluate import (
    COPIES,
    MAX_EPISODE_STEPS,
    Evaluation,
    Players,
    engine_of,
    load_groups,
    play,
)
from fugu.training.inputs import RunInputs
from fugu.vector import Vector, make

# What it takes to act: no optimizer, no experience, no states of environments.
_NEEDED = re.compile(r"config\.json|run\.json|checkpoints/.*/(policy_\d+\.safetensors|\w+\.json)")


@dataclass(frozen=True)
class Agent:
    """Trained policies, and the settings they were trained with.

    Attributes:
        config: The settings of the run.
        groups: The groups of agents of its environment.
        policies: One policy for each group.
        inputs: What settings cannot describe, such as an environment that the caller provides.
    """

    config: Config
    groups: list[AgentGroup]
    policies: list[Policy]
    inputs: RunInputs

    def make(self, num_envs: int = 1, **options: Any) -> Vector:
        """Make copies of the environment it was trained on; options are those of `fugu.make`."""
        given = {**self.config.env_options, **options}
        return make(self.inputs.env_of(self.config.env), num_envs, **given)

    def players(self, vec: Vector, *, greedy: bool = True, seed: int = 0) -> Players:
        """Return a callable that maps each batch of a vector to the actions for `vec.send`."""
        engine = engine_of(self.config)
        return Players(self.policies, vec, seed, greedy=greedy, engine=engine)

    def load(
        self, engine: str = "torch", *, group: str | None = None, seed: int = 0
    ) -> LoadedPolicy:
        """Return a policy with `act(observation, state)`, as `fugu.export.load` does.

        Args:
            engine: The inference backend, such as torch, onnx or native.
            group: The group of agents; needed if there are several.
            seed: Seed of the policy's own generator.
        """
        names = [each.name for each in self.groups]
        if group not in (names if len(names) > 1 else [None, *names]):
            expected = ", ".join(map(repr, names))
            raise UsageError(f"group: expected one of {expected}; got {group!r}.")
        index = names.index(group) if group is not None else 0
        layout = self.groups[index].observation_layout
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
                engine=engine_of(self.config),
                max_episode_steps=max_episode_steps,
            )


def load_agent(run: Run, checkpoint: Path | None = None, inputs: RunInputs | None = None) -> Agent:
    """Return the agent of a run, from a checkpoint or from its last one."""
    inputs = inputs or RunInputs()
    config, found = load_groups(run, checkpoint, inputs)
    return Agent(config, [group for group, _ in found], [policy for _, policy in found], inputs)


def from_hub(
    repo: str | Path,
    *,
    revision: str | None = None,
    trust: bool = False,
    env: Callable[..., Any] | None = None,
    policy_factory: PolicyFactory | None = None,
    max_bytes: int = MAX_BYTES,
    token: str | None = None,
) -> Agent:
    """Download and verify the policies of a shared run, without optimizer and experience.

    Args:
        repo: `user/name` on the Hub, or a folder that starts with `./`, `../`, `~` or `/`.
        revision: A branch, tag or commit.
        trust: Accept all settings of the run: an environment that is a Python factory or a native
            library, which is then imported and called, and any arguments of it.
        env: The environment to use instead of the one that the run names.
        policy_factory: The `policy_factory` that `fugu.train` was given, if any.
        max_bytes: The most bytes to download.
        token: A token of the Hub; that of `HF_TOKEN` or `hf auth login` if not given.

    Raises:
        RefusedError: A file is missing, changed, too large or not allowed; it names the file.
        HubError: The Hub cannot be reached, or denies a request.
    """
    inputs = RunInputs(env, policy_factory or make_policy, trust=trust)
    with (
        open_repository(repo, revision, token) as repository,
        tempfile.TemporaryDirectory(prefix="fugu-hub-") as folder,
    ):
        fetch(
            repository,
            Path(folder),
            wanted=_NEEDED.fullmatch,
            trust=trust,
            max_bytes=max_bytes,
            env_given=env is not None,
        )
        return load_agent(Run(folder), inputs=inputs)
