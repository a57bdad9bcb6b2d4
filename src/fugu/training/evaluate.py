"""Evaluation: how well policies play, episode by episode, with the same memory as in training."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fugu.algos.algorithm import PolicyFactory
from fugu.algos.registry import find_algorithm
from fugu.algos.settings import Config
from fugu.core.errors import EnvError, UsageError
from fugu.core.seeding import derive
from fugu.data.segments import by_constraint
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig, PolicyEngine
from fugu.policies.policy import Policy, make_policy
from fugu.rollout.forwards import make_forward
from fugu.store.checkpoint import load_checkpoint, refuses_misfits
from fugu.store.run import Run
from fugu.training.episode_quota import Episode, EpisodeQuota, mean_stats
from fugu.training.inputs import RunInputs
from fugu.training.untrusted import settings_of
from fugu.vector import Batch, Vector, make

if TYPE_CHECKING:
    from fugu.training.trainer import Trainer

log = logging.getLogger("fugu")
EVALUATION = 0x6576  # the branch of the seed tree
COPIES = 16
UNASKED = 10_000_000  # weights that a policy may have, whatever its checkpoint holds
MAX_EPISODE_STEPS = 100_000  # more than the time limit of any common environment


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation: the same number of episodes of each agent of each copy.

    Attributes:
        returns: Return of each episode, copy after copy and agent after agent.
        lengths: Length of each episode in steps of its agent, in the same order.
        costs: Mean cost of the same episodes, by name; empty if the environment has no costs.
        stats: Means of the other numbers in the episodes' infos, by name: the success rate under
            `is_success`, for example. Episodes that were cut off have none.
        cut_off: Number of episodes that were still running when they reached the step limit; their
            returns, lengths and costs are those up to there.
    """

    returns: tuple[float, ...]
    lengths: tuple[float, ...]
    costs: Mapping[str, float] = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)
    cut_off: int = 0

    @classmethod
    def of(cls, episodes: Sequence[Episode], groups: Sequence[AgentGroup]) -> Evaluation:
        """Return the evaluation that consists of these episodes, of agents of these groups."""
        ordered = sorted(episodes, key=lambda episode: (episode.env, episode.agent))
        costs: dict[str, float] = {}
        first = 0
        for group in groups:
            agents = range(first, first + group.num_agents)
            paid = [episode.costs for episode in episodes if episode.agent in agents]
            if group.num_costs and paid:
                prefix = "" if len(groups) == 1 else f"{group.name}/"
                costs |= by_constraint(f"{prefix}mean_cost", np.array(paid).mean(0))
            first += group.num_agents
        return cls(
            tuple(episode.episode_return for episode in ordered),
            tuple(episode.length for episode in ordered),
            costs,
            mean_stats([episode.stats for episode in ordered]),
            sum(episode.cut_off for episode in ordered),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return its figures as JSON; a statistic with the name of one is under `info/`."""
        returns = np.array(self.returns)
        figures = {
            "episodes": len(returns),
            "mean_return": float(returns.mean()),
            "deviation": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
            "lowest": float(returns.min()),
            "highest": float(returns.max()),
            "mean_length": float(np.mean(self.lengths)),
            "cut_off": self.cut_off,
            **self.costs,
        }
        stats = {f"info/{key}" if key in figures else key: v for key, v in self.stats.items()}
        return figures | stats


class Players:
    """Policies that act, with a recurrent state for each agent that ends with its episode.

    Attributes:
        drawn: The samples of the last batch, by group.
        engines: What computes the forward passes, by group: "torch" or "native".
    """

    drawn: list[Any]

    def __init__(
        self,
        policies: list[Policy],
        vec: Vector,
        seed: int,
        *,
        greedy: bool = True,
        engine: PolicyEngine = "auto",
    ) -> None:
        self._greedy, self._random = greedy, np.random.default_rng(derive(seed))
        self._groups = []
        for policy, group in zip(policies, vec.groups, strict=True):
            count, device = vec.num_envs * group.num_agents, next(policy.parameters()).device
            forward = make_forward(policy, group.observation_layout, engine, count)
            states = policy.initial_state(count, device)
            self._groups.append((policy, forward, policy.viewer(), states, device))
        self.engines = [forward.engine for _, forward, *_ in self._groups]

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Any:
        """Return the actions for a batch, as `Vector.send` takes them."""
        actions, self.drawn = [], []
        for own, group in zip(self._groups, batch.groups, strict=True):
            policy, forward, look, states, device = own
            rows, agents = group.rows, group.agent_ids
            ended = rows.terminations | rows.truncations | ~rows.valid
            states[agents] = policy.earned(states[agents], rows.rewards)
            states[agents[ended]] = 0.0
            seen = np.ascontiguousarray(look(agents, rows))
            params, _, after = forward(torch.from_numpy(seen).to(device), states[agents])
            masks = None if rows.action_masks.all() else rows.action_masks
            samples, _ = policy.distribution.sample(
                params.float().cpu(), masks, self._random, greedy=self._greedy, live=rows.live
            )
            after = policy.acted(after, samples)
            states[agents[rows.live]] = after[torch.from_numpy(rows.live).to(device)].float()
            self.drawn.append(samples)
            actions.append(policy.distribution.to_rows(samples))
        return actions[0] if len(actions) == 1 else tuple(actions)


def load_policies(
    run: Run, checkpoint: Path | None = None, inputs: RunInputs | None = None
) -> tuple[Config, list[Policy]]:
    """Return a run's settings and its policies, from a checkpoint or its last one."""
    cfg, found = load_groups(run, checkpoint, inputs)
    return cfg, [policy for _, policy in found]


def load_groups(
    run: Run, checkpoint: Path | None = None, inputs: RunInputs | None = None
) -> tuple[Config, list[tuple[AgentGroup, Policy]]]:
    """Return a run's settings, and each group of its agents with its policy."""
    path = checkpoint or run.latest()
    if path is None:
        raise UsageError(f"run: given {run.name!r}, which has no checkpoint yet.")
    inputs = inputs or RunInputs()
    cfg = settings_of(run, inputs)
    tensors = load_checkpoint(path).tensors
    factory = find_algorithm(cfg.algo).policy_factory(cfg, inputs.factory(cfg.policy))
    found = []
    with make(inputs.env_of(cfg.env), 1, backend="serial", **cfg.env_options) as vec:
        for i, group in enumerate(vec.groups):
            _check_size(cfg, tensors.get(f"policy_{i}", {}))
            critics = cfg.train.num_critics(group)
            policy = factory(group, cfg.policy, *([] if critics == 1 else [critics]))
            with refuses_misfits("the policy that the run's settings describe"):
                policy.load_state_dict(dict(tensors[f"policy_{i}"]))
            found.append((group, policy.eval()))
    return cfg, found


def _check_size(cfg: Config, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise UsageError before much memory is taken for a policy that the weights cannot fill."""
    if not isinstance(cfg.policy, PolicyConfig):
        return
    width, layers = cfg.policy.hidden_size, cfg.policy.layers
    least, held = width + (layers - 1) * width**2, sum(w.numel() for w in weights.values())
    if least > max(held, UNASKED):
        raise UsageError(
            f"policy: given {layers} layers of {width:,}, and {held:,} weights for them; allowed: "
            "the settings that the run was trained with. Use another run."
        )


def evaluate(
    run: str | Path | Run,
    *,
    episodes: int = 100,
    root: str | Path = "runs",
    best: bool = False,
    greedy: bool = True,
    seed: int = 0,
    env: Callable[..., Any] | None = None,
    policy_factory: PolicyFactory | None = None,
    max_episode_steps: int = MAX_EPISODE_STEPS,
    trust: bool = False,
) -> Evaluation:
    """Play episodes with a run's policies.

    Every agent of every copy plays the same number of episodes, so that short ones are not counted
    more often.

    Args:
        run: Its name, its folder, or "latest".
        episodes: Number of episodes of single agents, rounded up to a multiple of all agents of
            the up to 16 copies.
        root: Where runs are.
        best: Take the best checkpoint and not the last.
        greedy: Take the most probable actions and not random ones.
        seed: Of the environments and of the actions.
        env: What the run was trained on, if that was something to call.
        policy_factory: As of `train`, if it was given there.
        max_episode_steps: Steps of the environment after which an episode that does not end is
            counted as truncated; `Evaluation.cut_off` says how many were.
        trust: Trust the run from now on, whoever trained it: its settings may name code to run.
    """
    if episodes < 1:
        raise UsageError(f"episodes: given {episodes}; allowed: 1 or more.")
    found = run if isinstance(run, Run) else Run.open(run, root)
    inputs = RunInputs(env, policy_factory or make_policy, trust=trust)
    cfg, policies = load_policies(found, found.best() if best else None, inputs)
    with make(inputs.env_of(cfg.env), min(COPIES, episodes), **cfg.env_options) as vec:
        return play(
            policies,
            vec,
            episodes,
            greedy=greedy,
            seed=seed,
            engine=engine_of(cfg),
            max_episode_steps=max_episode_steps,
        )


def engine_of(cfg: Config) -> PolicyEngine:
    """Return what computes policies' forward passes; torch, for those without such a setting."""
    return cfg.policy.engine if isinstance(cfg.policy, PolicyConfig) else "torch"


def play(
    policies: list[Policy],
    vec: Vector,
    episodes: int,
    *,
    greedy: bool = True,
    seed: int = 0,
    engine: PolicyEngine = "auto",
    max_episode_steps: int = MAX_EPISODE_STEPS,
) -> Evaluation:
    """Play episodes in a vector of your own; see `evaluate`.

    The vector is reset, and once more whenever only episodes are left that were cut off.
    """
    if max_episode_steps < 1:
        raise UsageError(f"max_episode_steps: expected 1 or more; got {max_episode_steps}.")
    quota = EpisodeQuota(
        vec.groups, vec.num_envs, -(-episodes // vec.num_agents), max_episode_steps
    )
    path: tuple[int, ...] = (EVALUATION,)
    for resets in itertools.count(1):
        players = Players(policies, vec, derive(seed, *path), greedy=greedy, engine=engine)
        vec.async_reset(derive(seed, *path, 1))
        while True:
            batch = vec.recv()
            quota.add(batch)
            if quota.complete or quota.stuck:
                break
            vec.send(players(batch))
        if quota.complete:
            break
        quota.restart()
        path = (EVALUATION, 1 + resets)
    if not quota.episodes:
        raise EnvError(
            f"evaluation: no agent acted within {max_episode_steps:,} steps of the environment. "
            "Check that its agents are live after a reset."
        )
    return Evaluation.of(quota.episodes, vec.groups)


class Evaluator:
    """Evaluates a trainer's policies every so many agent steps (0: never), on the same episodes.

    Its environments are its own. `steps` are the agent steps at the last evaluation.
    """

    def __init__(self, every: int, episodes: int) -> None:
        self._every, self._episodes, self.steps = every, episodes, 0
        self._vec: Vector | None = None

    def evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Return what the first rank measures, at all ranks; nothing if no evaluation is due.

        One is due whenever `every` steps have passed, and at the end of the run.
        """
        every, done = self._every, trainer.steps >= trainer.cfg.train.total_steps
        if not every or (trainer.steps // every == self.steps // every and not done):
            return {}
        self.steps = trainer.steps
        found = {} if trainer.ranks.rank else self._play(trainer)
        return trainer.ranks.share(found, patient=True)

    def close(self) -> None:
        """Close the environments."""
        if self._vec is not None:
            self._vec.close()
            self._vec = None

    def _play(self, trainer: Trainer) -> dict[str, float]:
        cfg = trainer.cfg
        if self._vec is None:
            env = trainer.inputs.env_of(cfg.env)
            self._vec = make(env, min(COPIES, self._episodes), **cfg.env_options)
        limit = cfg.run.evaluation_max_episode_steps
        found = play(
            trainer.policies,
            self._vec,
            self._episodes,
            seed=cfg.seed,
            engine=engine_of(cfg),
            max_episode_steps=limit,
        )
        if found.cut_off:
            log.warning(
                "evaluation: %d of %d episodes did not end within %d steps and were cut off; "
                "--run.evaluation-max-episode-steps sets the limit",
                found.cut_off,
                len(found.returns),
                limit,
            )
        return found.to_dict()
