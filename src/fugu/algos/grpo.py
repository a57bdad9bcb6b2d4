"""GRPO: settings, group advantages, loss, update.

Copies of an environment that begin alike are a group, and an episode is compared with the others
of its group: there is no critic. `advantages="outcome"` compares the returns of whole episodes,
`"process"` the returns to go at the same time step. The objective is PPO's, with separate lower
and upper clips, and a KL penalty to a frozen reference if `beta` asks for it.

With the defaults this is GRPO (DeepSeekMath). Dr. GRPO is `normalise_std=False`,
`length="constant"`; DAPO is `length="group"`, `clip_high=0.28`, `dynamic_sampling=True`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.algos.algorithm import (
    ROW_STREAM,
    SAMPLING_STREAM,
    WEIGHT_STREAM,
    Algorithm,
    Metrics,
    RunContext,
    State,
    Tensors,
    as_arrays,
    as_tensors,
    choose_precision,
    compile_policy,
    load_environments,
    load_network,
    load_rng,
    save_environments,
    save_network,
    save_rng,
)
from fugu.algos.optimizers import make_optimizer, set_learning_rate
from fugu.algos.preferences import RewardModel, load_reward_model
from fugu.algos.settings import NO_CRITIC, Config, LearningConfig, Unused, VecConfig
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    Fraction,
    NonNegativeFloat,
    NonNegativeOrInfinite,
    PositiveInt,
    PositiveOrInfinite,
)
from fugu.core.ranks import SINGLE_PROCESS, Ranks, moments_of
from fugu.core.seeding import derive
from fugu.data.episodes import (
    Episode,
    Episodes,
    EpisodeShape,
    began_alike,
    pack,
    unpack,
    with_prefix,
)
from fugu.envs.contract import AgentGroup, Buffers
from fugu.policies.policy import Policy, frozen_copy
from fugu.policies.unpack import torch_dtype
from fugu.rollout.actor import EpisodeActor
from fugu.rollout.collector import Collector, ViewBatch
from fugu.rollout.observation_views import Recall
from fugu.vector import Batch, Vector

Floats = NDArray[np.float32]
Group = list[Episode]
METRICS = ("policy_loss", "entropy", "approx_kl", "clip_fraction")
STD_FLOOR = 1e-4  # added to a group's deviation before it divides
GROUP_STREAM = 4  # branch of the seed tree for groups that are restarted after a fault


@dataclass(frozen=True)
class GRPOConfig(LearningConfig):
    """Settings of GRPO."""

    teams: PositiveInt = 8
    """Teams of episodes that an update learns from."""
    advantages: Literal["outcome", "process"] = "outcome"
    """What is compared: returns of episodes, or what is still to come at the same time step."""
    gamma: Fraction = 1.0
    """Discount of a step, for what is still to come; returns of episodes are plain sums."""
    normalise_std: bool = True
    """Whether advantages are divided by how much they vary within their team."""
    length: Literal["episode", "group", "constant"] = "episode"
    """What a step's loss is divided by: steps of its episode, of its team on average, or
    `constant_length`."""
    constant_length: PositiveInt = 500
    """What "constant" divides by: the longest that an episode can be."""
    clip_low: NonNegativeOrInfinite = 0.2
    """How far below 1 a ratio may go before it gains nothing more."""
    clip_high: NonNegativeOrInfinite = 0.2
    """How far above 1 a ratio may go before it gains nothing more."""
    dynamic_sampling: bool = False
    """Whether teams whose episodes were all worth the same are replaced by others."""
    most_sampling: PositiveInt = 4
    """How many times `teams` are looked at before an update takes what it has."""
    beta: NonNegativeFloat = 0.0
    """Weight of the KL to the policy as it was at first; 0: none, and it is not kept."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of an entropy bonus, at the start."""
    final_entropy_coefficient: NonNegativeFloat | None = None
    """The same at the end, reached linearly; "none": as at the start."""
    epochs: PositiveInt = 4
    """How often an update goes through its episodes."""
    minibatches: PositiveInt = 4
    """Parts of an epoch; each is one step of the optimiser."""
    microbatch: PositiveInt = 4096
    """Steps that are computed at a time; gradients of a minibatch's parts are added up."""
    max_gradient_norm: PositiveOrInfinite = 0.5
    """Gradients are scaled down to this norm."""
    ahead: PositiveInt = 16
    """Episodes that a copy may be ahead of its team's slowest."""
    longest: PositiveInt = 100_000
    """Steps after which an episode counts as endless."""
    reward_model: Path | None = None
    """A checkpoint of a model whose rewards are learned from in place of the environment's."""

    def num_critics(self, group: AgentGroup) -> int:
        """None: the team tells what an episode was worth."""
        return 0


@dataclass(frozen=True)
class GRPOVecConfig(VecConfig):
    """How environments are stepped for GRPO."""

    group_size: int = 8
    """Copies that begin each episode alike, and are compared."""


# ---------------------------------------------------------------------- advantages


def group_advantages(rewards: Sequence[Floats], cfg: GRPOConfig) -> list[Floats]:
    """Return the advantage of every step of a group's episodes, from their rewards.

    >>> cfg = GRPOConfig(normalise_std=False)
    >>> [a.tolist() for a in group_advantages([np.array([1.0, 2.0]), np.array([1.0])], cfg)]
    [[1.0, 1.0], [-1.0]]
    """
    if cfg.advantages == "outcome":
        returns = np.array([episode.sum(dtype=np.float64) for episode in rewards])
        differences = returns - returns.mean()
        centered = [
            np.full(len(episode), difference)
            for episode, difference in zip(rewards, differences, strict=True)
        ]
        deviation = returns.std(ddof=1)
    else:
        centered = _center_steps([rewards_to_go(episode, cfg.gamma) for episode in rewards])
        deviation = np.concatenate(centered).std()
    divisor = deviation + STD_FLOOR if cfg.normalise_std else 1.0
    return [(steps / divisor).astype(np.float32) for steps in centered]


def rewards_to_go(rewards: Floats, gamma: float) -> NDArray[np.float64]:
    """Return the discounted sum of the rewards from each step on.

    >>> rewards_to_go(np.array([1.0, 2.0, 4.0]), 0.5).tolist()
    [3.0, 4.0, 4.0]
    """
    out, later = np.zeros(len(rewards)), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        later = float(rewards[t]) + gamma * later
        out[t] = later
    return out


def _center_steps(to_go: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Subtract the mean over the episodes that still went on at the same step."""
    sums, counts = np.zeros((2, max(map(len, to_go))))
    for steps in to_go:
        sums[: len(steps)] += steps
        counts[: len(steps)] += 1
    means = sums / counts
    return [steps - means[: len(steps)] for steps in to_go]


def step_weight(episode: Episode, group: Group, cfg: GRPOConfig) -> float:
    """Return the weight of each step's loss; a minibatch's sum is divided by its episodes."""
    if cfg.length == "episode":
        return 1.0 / episode.length
    if cfg.length == "group":
        return len(group) / sum(other.length for other in group)
    return 1.0 / cfg.constant_length


# ---------------------------------------------------------------------- loss


@dataclass(frozen=True)
class Minibatch:
    """Episodes as tensors, `[rows, time, ...]`, filled up with zeros."""

    observations: Tensor
    samples: Tensor
    masks: Tensor | None
    old_log_probabilities: Tensor
    reference_log_probabilities: Tensor | None
    advantages: Tensor
    weights: Tensor  # 0 where no step stands


def grpo_loss(
    policy: Policy, batch: Minibatch, cfg: GRPOConfig, count: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of some episodes, and sums over their steps as metrics.

    The loss is a sum over `count` episodes, so that losses of a minibatch's parts add up.
    """
    log_probabilities, entropies = evaluate(policy, batch)
    return objective(log_probabilities, entropies, batch, cfg, count)


def objective(
    log_probabilities: Tensor, entropies: Tensor, batch: Minibatch, cfg: GRPOConfig, count: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and metrics for log-probabilities and entropies `[rows, time]`."""
    exists = batch.weights != 0
    log_ratios = torch.where(exists, log_probabilities - batch.old_log_probabilities, 0.0)
    ratios = log_ratios.exp()
    clipped = ratios.clamp(1.0 - cfg.clip_low, 1.0 + cfg.clip_high)
    gains = torch.minimum(ratios * batch.advantages, clipped * batch.advantages)
    losses = -gains
    if cfg.entropy_coefficient:
        losses = losses - cfg.entropy_coefficient * entropies
    sums = {"policy_loss": -(gains * batch.weights).sum() / count}
    if batch.reference_log_probabilities is not None:
        # Chosen before the exponent: a gradient of infinity times 0 is NaN.
        reference = torch.where(exists, batch.reference_log_probabilities, 0.0)
        kl = k3(torch.where(exists, log_probabilities, 0.0), reference)
        losses = losses + cfg.beta * kl
        sums["kl"] = kl.sum()
    loss = torch.where(exists, losses * batch.weights, 0.0).sum() / count
    with torch.no_grad():
        sums |= {
            "entropy": torch.where(exists, entropies, 0.0).sum(),
            "approx_kl": (ratios - 1.0 - log_ratios).sum(),
            "clip_fraction": ((gains != ratios * batch.advantages) & exists).sum(),
        }
    return loss, {name: value.detach().double() for name, value in sums.items()}


def k3(log_probabilities: Tensor, reference: Tensor) -> Tensor:
    """Return an estimate of the KL to a reference that is never below 0 and has no bias.

    >>> k3(torch.tensor([0.0]), torch.tensor([0.0])).item()
    0.0
    """
    distance = reference - log_probabilities
    return distance.exp() - distance - 1.0


def evaluate(policy: Policy, batch: Minibatch) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies of a minibatch, `[rows, time]`."""
    rows, steps = batch.weights.shape
    state = policy.initial_state(rows, batch.weights.device)
    resets = torch.zeros(rows, steps, dtype=torch.bool)
    params, _ = policy.forward_segments(batch.observations, state, resets)
    return policy.distribution.evaluate(params, batch.samples, batch.masks)


# ---------------------------------------------------------------------- update


class GRPOLearner:
    """Improves the policy of some agents from their groups of episodes.

    A reward model replaces the rewards of the environment. Ranks learn together: each has groups of
    its own, and all take the same steps.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        cfg: GRPOConfig,
        random: np.random.Generator,
        agents: AgentGroup,
        reward_model: RewardModel | None = None,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        self._ranks = ranks
        self.policy, self.optimizer, self.cfg, self._random = policy, optimizer, cfg, random
        self._agents, self._reward_model = agents, reward_model
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self._reference: Policy | None = None
        self._groups: list[Group] = []
        self._offered, self._alike = 0, 0

    def offer(self, group: Group) -> None:
        """Add the episodes of a group for the next update, unless sampling leaves them out."""
        self._offered += 1
        self._alike += began_alike(group)
        if self._reward_model is not None:
            group = [replace(e, rewards=self._reward_model.rewards(e)) for e in group]
        if not self.cfg.dynamic_sampling or self._differs(group):
            self._groups.append(group)

    @property
    def full(self) -> bool:
        """Whether there are enough groups for an update."""
        most = self.cfg.most_sampling * self.cfg.teams
        return len(self._groups) >= self.cfg.teams or self._offered >= most

    def _differs(self, group: Group) -> bool:
        """Whether any episode of a group was better than another."""
        plain = replace(self.cfg, normalise_std=False)
        advantages = np.concatenate(group_advantages([e.rewards for e in group], plain))
        scale = max(float(np.abs(e.rewards).sum()) for e in group)
        return bool(np.abs(advantages).max() > 1e-6 * max(1.0, scale))

    def update(self, progress: float = 0.0) -> dict[str, float]:
        """Learn from the groups there are, and return metrics.

        Args:
            progress: Share of the whole training, from 0 to 1.
        """
        cfg, groups = self.cfg, self._groups
        final = cfg.final_entropy_coefficient
        if final is not None:
            entropy = cfg.entropy_coefficient + (final - cfg.entropy_coefficient) * progress
            cfg = replace(cfg, entropy_coefficient=entropy)
        local = np.array([len(groups), self._offered, self._alike], np.float64)
        self._groups, self._offered, self._alike = [], 0, 0
        count, offered, alike = self._ranks.sum(local).tolist()
        metrics = {
            "teams": count,
            "teams_left_out": offered - count,
            "began_alike": alike / max(1.0, offered),
        }
        if not count:
            return metrics
        if cfg.beta > 0 and self._reference is None:
            self._reference = frozen_copy(self.policy)
        steps = Steps(self.policy, groups, cfg) if groups else None
        if steps is not None and self._reference is not None:
            steps.add_reference(self._reference)
        own = 0 if steps is None else len(steps.lengths)
        parts = min(cfg.minibatches, int(self._ranks.largest(own)))
        sums: dict[str, list[float]] = {}
        for _ in range(cfg.epochs):
            order = self._random.permutation(own)
            for part in np.array_split(order, parts):
                for name, value in self._step(steps, part, cfg).items():
                    sums.setdefault(name, []).append(value)
        if self.policy.scales:
            self.policy.note(self._no_observations() if steps is None else steps.observations())
        metrics |= {name: sum(values) / len(values) for name, values in sums.items()}
        return metrics | self._describe(groups)

    def _step(
        self, steps: Steps | None, chosen: NDArray[np.int64], cfg: GRPOConfig
    ) -> dict[str, float]:
        """Take one step of the optimizer on some episodes; a rank may have none."""
        self.optimizer.zero_grad(set_to_none=True)
        totals = dict.fromkeys((*METRICS, "kl") if self._reference is not None else METRICS, 0.0)
        own = 0 if steps is None else int(steps.lengths[chosen].sum())
        episodes, count = self._ranks.sum(np.array([len(chosen), own], np.float64)).tolist()
        if steps is not None:
            for part in steps.parts(chosen):
                loss, sums = grpo_loss(self.policy, steps.minibatch(part), cfg, episodes)
                loss.backward()  # type: ignore[no-untyped-call]
                for name, value in sums.items():
                    totals[name] += float(value)
        self._ranks.add_gradients(self._parameters)
        norm = nn.utils.clip_grad_norm_(self._parameters, cfg.max_gradient_norm)
        self.optimizer.step()
        totals = self._ranks.add_up(totals)
        means = {k: v if k == "policy_loss" else v / count for k, v in totals.items()}
        return means | {"gradient_norm": float(norm)}

    def _no_observations(self) -> Tensor:
        layout = self.policy.stored(self._agents).observation_layout
        device = next(self.policy.parameters()).device
        return torch.zeros(0, layout.size, dtype=torch_dtype(layout.dtype), device=device)

    def _describe(self, groups: list[Group]) -> dict[str, float]:
        size = len(groups[0]) if groups else 2
        returns = np.array([[e.total for e in group] for group in groups]).reshape(-1, size)
        inside = moments_of(returns.std(1, ddof=1))
        between = self._ranks.moments(moments_of(returns.mean(1)))
        return {
            "learned_return": float(self._ranks.moments(moments_of(returns.ravel())).mean),
            "deviation_in_team": float(self._ranks.moments(inside).mean),
            "deviation_between_teams": float(between.variance) ** 0.5,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the groups that wait, and the reference."""
        episodes = [episode for group in self._groups for episode in group]
        state: dict[str, Any] = {
            **{f"teams.{name}": array for name, array in pack(episodes, self._agents).items()},
            "counts": np.array([len(self._groups), self._offered, self._alike]),
        }
        if self._reference is not None:
            state |= {f"reference.{k}": v for k, v in self._reference.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        count, self._offered, self._alike = (int(number) for number in state["counts"])
        episodes = unpack(as_arrays(with_prefix(state, "teams.")))
        size = len(episodes) // max(1, count)
        self._groups = [episodes[i * size : (i + 1) * size] for i in range(count)]
        reference = as_tensors(with_prefix(state, "reference."))
        if reference:
            self._reference = frozen_copy(self.policy)
            self._reference.load_state_dict(reference)


class Steps:
    """All steps of an update's episodes one after another, and where each episode begins."""

    def __init__(self, policy: Policy, groups: list[Group], cfg: GRPOConfig) -> None:
        self._policy, self._microbatch = policy, cfg.microbatch
        self._device = next(policy.parameters()).device
        episodes = [episode for group in groups for episode in group]
        self.lengths = np.array([episode.length for episode in episodes], np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        rewards = [[episode.rewards for episode in group] for group in groups]
        advantages = [steps for group in rewards for steps in group_advantages(group, cfg)]
        weights = [step_weight(episode, group, cfg) for group in groups for episode in group]
        masks = [episode.masks for episode in episodes]
        self._all = Minibatch(
            observations=self._joined([episode.observations for episode in episodes]),
            samples=self._joined([episode.samples for episode in episodes]),
            masks=None if all(m.all() for m in masks) else self._joined(masks, True),
            old_log_probabilities=self._joined([e.log_probabilities for e in episodes]),
            reference_log_probabilities=None,
            advantages=self._joined(advantages),
            weights=self._joined([np.repeat(np.array(weights, np.float32), self.lengths)]),
        )

    @torch.no_grad()
    def add_reference(self, reference: Policy) -> None:
        """Compute a reference's log-probabilities of the actions."""
        found = torch.zeros_like(self._all.old_log_probabilities)
        for part in self.parts(np.arange(len(self.lengths))):
            found[self._places(part)] = evaluate(reference, self.minibatch(part))[0].to(found.dtype)
        self._all = replace(self._all, reference_log_probabilities=found)

    def observations(self) -> Tensor:
        """Return all observations, `[steps, size]`."""
        return self._all.observations[:-1]

    def parts(self, chosen: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Split episodes into parts of at most `microbatch` steps, the longest first.

        A part has at least one episode. Padding counts, where there is some.
        """
        order = chosen[np.argsort(-self.lengths[chosen], kind="stable")]
        parts: list[list[int]] = []
        room = cost = 0
        for i in order.tolist():
            steps = int(self.lengths[i])
            if not parts or room < (cost if self._policy.state_size else steps):
                parts.append([])
                room, cost = self._microbatch, steps
            parts[-1].append(i)
            room -= cost if self._policy.state_size else steps
        return [np.array(part, np.int64) for part in parts]

    def minibatch(self, chosen: NDArray[np.int64]) -> Minibatch:
        """Return some episodes as tensors, a row for each where steps depend on earlier ones.

        A policy without memory sees all steps in one row, and nothing is padded.
        """
        places = self._places(chosen)
        columns: list[Any] = [getattr(self._all, field.name) for field in fields(Minibatch)]
        parts: list[Any] = [None if column is None else column[places] for column in columns]
        return Minibatch(*parts)

    def _places(self, chosen: NDArray[np.int64]) -> Tensor:
        """Return the indices of steps of episodes, `[rows, time]`; padding is the last index."""
        lengths, starts = self.lengths[chosen], self._starts[chosen]
        times = np.arange(lengths.max())
        inside = times < lengths[:, None]
        places = np.where(inside, starts[:, None] + times, len(self._all.weights) - 1)
        if not self._policy.state_size:
            places = places[inside][None]
        return torch.from_numpy(places).to(self._device)

    def _joined(self, arrays: Sequence[NDArray[Any]], padding: Any = 0) -> Tensor:
        """Concatenate arrays of steps, with one more row for padding."""
        last = np.full((1, *arrays[0].shape[1:]), padding, arrays[0].dtype)
        return torch.from_numpy(np.concatenate([*arrays, last])).to(self._device)


# ---------------------------------------------------------------------- collection


class GroupActor(EpisodeActor):
    """Acts for some agents, whose complete groups of episodes go to a learner."""

    def __init__(
        self,
        policy: Policy,
        episodes: Episodes,
        device: torch.device,
        random: np.random.Generator,
        learner: GRPOLearner,
    ) -> None:
        super().__init__(policy, episodes, device, random)
        self.learner = learner

    @property
    def full(self) -> bool:
        """Whether the learner has enough."""
        return self.learner.full

    def act(self, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        """Record what these agents received, and return their next actions."""
        actions = super().act(agents, rows)
        for group in self.episodes.take():
            self.learner.offer(group)
        return actions

    def forget(self, agents: NDArray[np.int64]) -> None:
        """Drop the open episodes of these agents, which are whole groups."""
        self.episodes.forget(agents)
        self.states[agents] = 0.0


class GroupCollector(Collector):
    """A collector that restarts a whole group where a fault restarted one of its copies.

    That copy would begin other episodes than its group. The group gets a seed of its own.
    """

    def __init__(
        self,
        vec: Vector,
        actors: list[GroupActor],
        group_size: int,
        seed: int,
        view: ViewBatch | None = None,
        first_group: int = 0,
    ) -> None:
        super().__init__(vec, actors, view)
        self._group_actors, self._group_size, self._seed = actors, group_size, seed
        self._first_group = first_group  # among the groups of all ranks
        self.restarts = 0

    @torch.no_grad()
    def handle(self, batch: Batch) -> None:
        """Act on one batch."""
        broken = np.zeros(self.vec.num_envs, np.bool_)
        for agents, own in zip(batch.groups, self.vec.groups, strict=True):
            broken |= ~agents.rows.valid.reshape(-1, own.num_agents).all(1)
        if broken.any():
            self.episodes.note(batch.infos)
            batch = replace(self._restart_groups(broken), infos={})
        super().handle(batch)

    def forget_all(self) -> None:
        """Drop all open episodes, since every environment is reset."""
        for actor in self._group_actors:
            actor.forget(np.arange(actor.episodes.shape.agents))

    def _restart_groups(self, broken: NDArray[np.bool_]) -> Batch:
        size = self._group_size
        hit = np.repeat(broken.reshape(-1, size).any(1), size)
        self.restarts += 1
        groups = [self._first_group + env // size for env in range(len(hit))]
        seeds = [derive(self._seed, GROUP_STREAM, self.restarts, group) for group in groups]
        for actor, agents in zip(self._group_actors, self.vec.groups, strict=True):
            actor.forget(np.flatnonzero(np.repeat(hit, agents.num_agents)))
        return self.vec.reset_some(hit, seeds)


# ---------------------------------------------------------------------- algorithm


class GRPO(Algorithm):
    """GRPO, with an actor and a learner for each group of agents."""

    Config, VecConfig = GRPOConfig, GRPOVecConfig
    changeable = ("learning_rate", "final_learning_rate")
    supports_ranks = True
    unused: ClassVar[Mapping[str, Unused]] = {
        "train.cpu_offload": Unused((False,), "Its episodes are in the CPU's memory in any case."),
        "policy.critic": NO_CRITIC,
    }

    def __init__(self, context: RunContext) -> None:
        cfg, vec = context.config, context.vector
        check(cfg, vec)
        self.context, self.cfg, self.vec = context, cfg, vec
        self._device, self.ranks = context.device, context.ranks
        self._random = [
            self.ranks.row_generator(derive(cfg.seed, SAMPLING_STREAM)),
            self.ranks.own_generator(derive(cfg.seed, ROW_STREAM)),
        ]
        torch.manual_seed(derive(cfg.seed, WEIGHT_STREAM) >> 1)
        self._actors = [self._make_actor(group) for group in vec.groups]
        self.policies = [actor.policy for actor in self._actors]
        self._recall = Recall.of(self.policies, cfg.policy.recall_worth)
        first = self.ranks.rank * vec.num_envs // cfg.vec.group_size
        self.collector: GroupCollector = GroupCollector(
            vec, self._actors, cfg.vec.group_size, cfg.seed, self._recall, first
        )
        self.episodes = self.collector.episodes

    def _make_actor(self, group: AgentGroup) -> GroupActor:
        cfg, agents = self.cfg, self.vec.num_envs * group.num_agents
        precision = choose_precision(cfg.policy, agents, self._device)
        shape = replace(cfg.policy, precision=precision)
        critics = cfg.train.num_critics(group)
        policy = self.context.policy_factory(group, shape, critics).to(self._device)
        if cfg.train.compile:
            compile_policy(policy)
        model: RewardModel | None = None
        if cfg.train.reward_model is not None:
            model = load_reward_model(cfg.train.reward_model, group).to(self._device)
        optimizer = make_optimizer(policy, cfg.train.optimizer_config())
        learner = GRPOLearner(
            policy, optimizer, cfg.train, self._random[1], group, model, self.ranks
        )
        size = policy.distribution.num_samples
        store = EpisodeShape(agents, cfg.vec.group_size, size, cfg.train.ahead, cfg.train.longest)
        episodes = Episodes(policy.stored(group), store)
        return GroupActor(policy, episodes, self._device, self._random[0], learner)

    # ------------------------------------------------------------------ collect and update

    def start(self, seed: int) -> None:
        """Begin a run: reset all environments with this seed."""
        self.collector.forget_all()
        self.collector.start(self.context.reset_seeds(seed))

    def collect(self) -> None:
        """Step the environments until some group has enough teams for an update."""
        self.collector.collect()

    def update(self, progress: float) -> Metrics:
        """Learn from the teams that are complete, at whatever rank, and return metrics."""
        losses: Metrics = {}
        rate = self.context.learning_rate(progress)
        for actor, group in zip(self._actors, self.vec.groups, strict=True):
            if not self.ranks.any(actor.full):
                continue
            set_learning_rate(actor.learner.optimizer, rate)
            found = actor.learner.update(progress)
            found["given_up"] = float(actor.episodes.given_up)
            prefix = "" if len(self._actors) == 1 else f"{group.name}/"
            losses |= {f"{prefix}{name}": value for name, value in found.items()}
        return losses

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs."""
        tensors: Tensors = {}
        optimizers = []
        for i, actor in enumerate(self._actors):
            optimizers.append(save_network(tensors, i, actor.policy, actor.learner.optimizer))
            tensors[f"episodes_{i}"] = {**actor.episodes.state_dict(), "recurrent": actor.states}
            tensors[f"learner_{i}"] = actor.learner.state_dict()
        if self._recall is not None:
            tensors |= self._recall.state()
        save_environments(tensors, self.collector)
        state = {
            "optimisers": optimizers,
            "random": save_rng(self._random),
            "backend": [self.vec.backend, self.vec.num_workers],
            "mended": self.collector.restarts,
        }
        return tensors, state

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        for i, actor in enumerate(self._actors):
            rest = state["optimisers"][i]
            load_network(tensors, i, actor.policy, actor.learner.optimizer, rest)
            arrays = as_arrays(tensors[f"episodes_{i}"])
            actor.states.copy_(torch.from_numpy(arrays.pop("recurrent")))
            actor.episodes.load_state_dict(arrays)
            actor.learner.load_state_dict(tensors[f"learner_{i}"])
        load_rng(self._random, state["random"])
        self.collector.steps = int(state["steps"])
        self.collector.restarts = int(state["mended"])
        if self._recall is not None and "environments" in tensors:
            self._recall.load(tensors)
        if not load_environments(tensors, self.collector):
            self.start(int(state["reset_seed"]))


def check(cfg: Config, vec: Vector) -> None:
    """Raise if copies cannot be compared, or cannot be kept in step."""
    if cfg.vec.group_size < 2:
        raise UsageError(
            f"vec.group_size: given {cfg.vec.group_size}; allowed with grpo: 2 or more. The copies "
            "of a group begin each episode alike, and are compared."
        )
    if vec.batch_size != vec.num_envs:
        raise UsageError(
            f"vec.batch_size: given {vec.batch_size}; allowed with grpo: all {vec.num_envs} copies."
        )
    if cfg.train.reward_model is not None and cfg.policy.recall:
        raise UsageError(
            "train.reward_model: given with policy.recall; allowed: one of them, since the model "
            "reads what agents see and not what they are shown."
        )
    if cfg.train.reward_model is not None and len(vec.groups) > 1:
        raise UsageError(
            f"train.reward_model: given with {len(vec.groups)} groups of agents; allowed: one."
        )
