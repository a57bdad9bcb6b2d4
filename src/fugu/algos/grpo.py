"""GRPO: settings, group advantages, loss, update.

Copies of an environment that begin alike are a team, and what an episode was worth is told by its
team: there is no critic. `advantages="outcome"` compares the returns of whole episodes,
`"process"` what was still to come at the same time step. The objective is PPO's, with bounds of
its own below and above, and a penalty for leaving a frozen reference if `beta` asks for it.

With the defaults this is GRPO (DeepSeekMath). Dr. GRPO is `normalise_std=False`,
`length="constant"`; DAPO is `length="group"`, `clip_high=0.28`, `dynamic_sampling=True`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from fugu.data.episodes import Episode, Episodes, EpisodeShape, began_alike, pack, unpack
from fugu.envs.contract import AgentGroup, Buffers
from fugu.policies.policy import Policy, frozen_copy
from fugu.policies.unpack import torch_dtype
from fugu.rollout.actor import EpisodeActor
from fugu.rollout.collector import Collector, ViewBatch
from fugu.rollout.observation_views import Recall
from fugu.vector import Batch, Vector

Floats = NDArray[np.float32]
Team = list[Episode]
SUMS = ("policy_loss", "entropy", "approx_kl", "clip_fraction")  # of a loss
STD_FLOOR = 1e-4  # added to a team's deviation before it divides


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


def team_advantages(rewards: Sequence[Floats], cfg: GRPOConfig) -> list[Floats]:
    """The advantage of every step of a team's episodes, from their rewards.

    >>> cfg = GRPOConfig(normalise_std=False)
    >>> [a.tolist() for a in team_advantages([np.array([1.0, 2.0]), np.array([1.0])], cfg)]
    [[1.0, 1.0], [-1.0]]
    """
    if cfg.advantages == "outcome":
        returns = np.array([episode.sum(dtype=np.float64) for episode in rewards])
        centred = [
            np.full(len(episode), worth)
            for episode, worth in zip(rewards, returns - returns.mean(), strict=True)
        ]
        spread = returns.std(ddof=1)
    else:
        centred = _centre_steps([rewards_to_go(episode, cfg.gamma) for episode in rewards])
        spread = np.concatenate(centred).std()
    divisor = spread + STD_FLOOR if cfg.normalise_std else 1.0
    return [(steps / divisor).astype(np.float32) for steps in centred]


def rewards_to_go(rewards: Floats, gamma: float) -> NDArray[np.float64]:
    """What is still to come at each step, discounted.

    >>> rewards_to_go(np.array([1.0, 2.0, 4.0]), 0.5).tolist()
    [3.0, 4.0, 4.0]
    """
    out, later = np.zeros(len(rewards)), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        later = float(rewards[t]) + gamma * later
        out[t] = later
    return out


def _centre_steps(to_go: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Less the mean of those episodes that still went on at the same step."""
    sums, counts = np.zeros(max(map(len, to_go))), np.zeros(max(map(len, to_go)))
    for steps in to_go:
        sums[: len(steps)] += steps
        counts[: len(steps)] += 1
    means = sums / counts
    return [steps - means[: len(steps)] for steps in to_go]


def step_weight(episode: Episode, team: Team, cfg: GRPOConfig) -> float:
    """What a step's loss is multiplied with; a minibatch's sum is divided by its episodes."""
    if cfg.length == "episode":
        return 1.0 / episode.length
    if cfg.length == "group":
        return len(team) / sum(other.length for other in team)
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
    policy: Policy, batch: Minibatch, cfg: GRPOConfig, normaliser: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of some episodes, and sums over their steps for the record.

    It is a sum over `normaliser`, so that losses of a minibatch's parts add up to its own.
    """
    log_probabilities, entropies = evaluate(policy, batch)
    return objective(log_probabilities, entropies, batch, cfg, normaliser)


def objective(
    log_probabilities: Tensor, entropies: Tensor, batch: Minibatch, cfg: GRPOConfig, count: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of log-probabilities and entropies `[rows, time]`."""
    there = batch.weights != 0
    log_ratios = torch.where(there, log_probabilities - batch.old_log_probabilities, 0.0)
    ratios = log_ratios.exp()
    clipped = ratios.clamp(1.0 - cfg.clip_low, 1.0 + cfg.clip_high)
    gains = torch.minimum(ratios * batch.advantages, clipped * batch.advantages)
    losses = -gains
    if cfg.entropy_coefficient:
        losses = losses - cfg.entropy_coefficient * entropies
    sums = {"policy_loss": -(gains * batch.weights).sum() / count}
    if batch.reference_log_probabilities is not None:
        # Chosen before the exponent: a gradient of infinity times 0 is no number.
        reference = torch.where(there, batch.reference_log_probabilities, 0.0)
        kl = k3(torch.where(there, log_probabilities, 0.0), reference)
        losses = losses + cfg.beta * kl
        sums["kl"] = kl.sum()
    loss = torch.where(there, losses * batch.weights, 0.0).sum() / count
    with torch.no_grad():
        cut = (gains != ratios * batch.advantages) & there
        sums |= {
            "entropy": torch.where(there, entropies, 0.0).sum(),
            "approx_kl": (ratios - 1.0 - log_ratios).sum(),
            "clip_fraction": cut.sum(),
        }
    return loss, {name: value.detach().double() for name, value in sums.items()}


def k3(log_probabilities: Tensor, reference: Tensor) -> Tensor:
    """An estimate of the KL to a reference that is never below 0 and has no bias.

    >>> k3(torch.tensor([0.0]), torch.tensor([0.0])).item()
    0.0
    """
    distance = reference - log_probabilities
    return distance.exp() - distance - 1.0


def evaluate(policy: Policy, batch: Minibatch) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of a minibatch, `[rows, time]`."""
    rows, steps = batch.weights.shape
    state = policy.initial_state(rows, batch.weights.device)
    resets = torch.zeros(rows, steps, dtype=torch.bool)
    params, _ = policy.forward_segments(batch.observations, state, resets)
    return policy.distribution.evaluate(params, batch.samples, batch.masks)


# ---------------------------------------------------------------------- update


class GRPOLearner:
    """Improves one group's policy from its agents' teams of episodes.

    Args:
        policy: To be improved.
        optimiser: Of its parameters.
        cfg: The settings.
        random: Draws the episodes of minibatches.
        group: The agents.
        reward_model: What rewards are taken from, if not from the environment.
        ranks: Who learn together; each has teams of its own, and all take the same steps.
    """

    def __init__(
        self,
        policy: Policy,
        optimiser: torch.optim.Optimizer,
        cfg: GRPOConfig,
        random: np.random.Generator,
        group: AgentGroup,
        reward_model: RewardModel | None = None,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        self._ranks = ranks
        self.policy, self.optimiser, self.cfg, self._random = policy, optimiser, cfg, random
        self._group, self._reward_model = group, reward_model
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self._reference: Policy | None = None
        self._teams: list[Team] = []
        self._looked_at, self._alike = 0, 0

    # ------------------------------------------------------------------ teams

    def offer(self, team: Team) -> None:
        """Episodes of a team, to be learned from by the next update."""
        self._looked_at += 1
        self._alike += began_alike(team)
        if self._reward_model is not None:
            team = [replace(e, rewards=self._reward_model.rewards(e)) for e in team]
        if self.cfg.dynamic_sampling and not self._tells(team):
            return
        self._teams.append(team)

    @property
    def full(self) -> bool:
        """Whether there is enough for an update."""
        most = self.cfg.most_sampling * self.cfg.teams
        return len(self._teams) >= self.cfg.teams or self._looked_at >= most

    def _tells(self, team: Team) -> bool:
        """Whether any episode of a team was worth more than another."""
        plain = replace(self.cfg, normalise_std=False)
        advantages = np.concatenate(team_advantages([e.rewards for e in team], plain))
        scale = max(float(np.abs(e.rewards).sum()) for e in team)
        return bool(np.abs(advantages).max() > 1e-6 * max(1.0, scale))

    # ------------------------------------------------------------------ learning

    def update(self, progress: float = 0.0) -> dict[str, float]:
        """Learn from the teams there are; what there is to say of it.

        Args:
            progress: Of the whole training, from 0 to 1.
        """
        cfg, teams = self.cfg, self._teams
        final = cfg.final_entropy_coefficient
        if final is not None:
            entropy = cfg.entropy_coefficient + (final - cfg.entropy_coefficient) * progress
            cfg = replace(cfg, entropy_coefficient=entropy)
        looked_at, alike = self._looked_at, self._alike
        self._teams, self._looked_at, self._alike = [], 0, 0
        counts = self._ranks.sum(np.array([len(teams), looked_at, alike], np.float64)).tolist()
        told = {
            "teams": counts[0],
            "teams_left_out": counts[1] - counts[0],
            "began_alike": counts[2] / max(1.0, counts[1]),
        }
        if not counts[0]:
            return told
        if cfg.beta > 0 and self._reference is None:
            self._reference = frozen_copy(self.policy)
        steps = Steps(self.policy, teams, cfg) if teams else None
        if steps is not None and self._reference is not None:
            steps.note_reference(self._reference)
        own = 0 if steps is None else len(steps.lengths)
        parts = min(cfg.minibatches, int(self._ranks.largest(own)))
        sums: dict[str, list[float]] = {}
        for _ in range(cfg.epochs):
            order = self._random.permutation(own)
            for part in np.array_split(order, parts):
                for name, value in self._step(steps, part, cfg).items():
                    sums.setdefault(name, []).append(value)
        if self.policy.scales:
            self.policy.note(self._nothing_seen() if steps is None else steps.observations())
        told |= {name: sum(values) / len(values) for name, values in sums.items()}
        return told | self._describe(teams)

    def _step(
        self, steps: Steps | None, chosen: NDArray[np.int64], cfg: GRPOConfig
    ) -> dict[str, float]:
        """One step of the optimiser on some episodes; a rank may have none."""
        self.optimiser.zero_grad(set_to_none=True)
        totals = dict.fromkeys((*SUMS, "kl") if self._reference is not None else SUMS, 0.0)
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
        self.optimiser.step()
        totals = self._ranks.add_up(totals)
        means = {k: v if k == "policy_loss" else v / count for k, v in totals.items()}
        return means | {"gradient_norm": float(norm)}

    def _nothing_seen(self) -> Tensor:
        layout = self.policy.stored(self._group).observation_layout
        device = next(self.policy.parameters()).device
        return torch.zeros(0, layout.size, dtype=torch_dtype(layout.dtype), device=device)

    def _describe(self, teams: list[Team]) -> dict[str, float]:
        size = len(teams[0]) if teams else 2
        returns = np.array([[e.total for e in team] for team in teams]).reshape(len(teams), size)
        inside = moments_of(returns.std(1, ddof=1))
        of_teams = self._ranks.moments(moments_of(returns.mean(1)))
        return {
            "learned_return": float(self._ranks.moments(moments_of(returns.ravel())).mean),
            "deviation_in_team": float(self._ranks.moments(inside).mean),
            "deviation_between_teams": float(of_teams.variance) ** 0.5,
        }

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Teams that wait, and the reference."""
        episodes = [episode for team in self._teams for episode in team]
        state: dict[str, Any] = {
            **{f"teams.{name}": array for name, array in pack(episodes, self._group).items()},
            "counts": np.array([len(self._teams), self._looked_at, self._alike]),
        }
        if self._reference is not None:
            state |= {f"reference.{k}": v for k, v in self._reference.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        teams, self._looked_at, self._alike = (int(number) for number in state["counts"])
        packed = {k.removeprefix("teams."): v for k, v in state.items() if k.startswith("teams.")}
        episodes = unpack({name: np.asarray(value) for name, value in packed.items()})
        size = len(episodes) // max(1, teams)
        self._teams = [episodes[i * size : (i + 1) * size] for i in range(teams)]
        reference = {
            k.removeprefix("reference."): torch.as_tensor(v)
            for k, v in state.items()
            if k.startswith("reference.")
        }
        if reference:
            self._reference = frozen_copy(self.policy)
            self._reference.load_state_dict(reference)


class Steps:
    """All steps of an update's episodes one after another, and where each episode stands."""

    def __init__(self, policy: Policy, teams: list[Team], cfg: GRPOConfig) -> None:
        self._policy, self._microbatch = policy, cfg.microbatch
        self._device = next(policy.parameters()).device
        episodes = [episode for team in teams for episode in team]
        self.lengths = np.array([episode.length for episode in episodes], np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        rewards = [[episode.rewards for episode in team] for team in teams]
        advantages = [steps for team in rewards for steps in team_advantages(team, cfg)]
        weights = [step_weight(episode, team, cfg) for team in teams for episode in team]
        masks = [episode.masks for episode in episodes]
        self._observations = self._joined([episode.observations for episode in episodes])
        self._samples = self._joined([episode.samples for episode in episodes])
        self._masks = None if all(m.all() for m in masks) else self._joined(masks, True)
        self._old = self._joined([episode.log_probabilities for episode in episodes])
        self._advantages = self._joined(advantages)
        self._weights = self._joined([np.repeat(np.array(weights, np.float32), self.lengths)])
        self._reference: Tensor | None = None

    @torch.no_grad()
    def note_reference(self, reference: Policy) -> None:
        """What a reference thinks of the actions."""
        said = torch.zeros_like(self._old)
        for part in self.parts(np.arange(len(self.lengths))):
            places = self._places(part)
            said[places] = evaluate(reference, self.minibatch(part))[0].to(said.dtype)
        self._reference = said

    def observations(self) -> Tensor:
        """All that was seen, `[steps, size]`."""
        return self._observations[:-1]

    def parts(self, chosen: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Episodes in parts of at most `microbatch` steps, the longest first.

        A part has one episode at least. Padding counts, where there is some.
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
        """Some episodes as tensors: a row for each where steps depend on earlier ones.

        A policy without memory sees all steps in one row, and nothing is padded.
        """
        places = self._places(chosen)
        return Minibatch(
            self._observations[places],
            self._samples[places],
            None if self._masks is None else self._masks[places],
            self._old[places],
            None if self._reference is None else self._reference[places],
            self._advantages[places],
            self._weights[places],
        )

    def _places(self, chosen: NDArray[np.int64]) -> Tensor:
        """Where the steps of episodes stand, `[rows, time]`; padding is the last place of all."""
        lengths, starts = self.lengths[chosen], self._starts[chosen]
        times = np.arange(lengths.max())
        inside = times < lengths[:, None]
        places = np.where(inside, starts[:, None] + times, len(self._old) - 1)
        if not self._policy.state_size:
            places = places[inside][None]
        return torch.from_numpy(places).to(self._device)

    def _joined(self, arrays: Sequence[NDArray[Any]], padding: Any = 0) -> Tensor:
        """Arrays of steps as one tensor, and a last row for padding."""
        last = np.full((1, *arrays[0].shape[1:]), padding, arrays[0].dtype)
        return torch.from_numpy(np.concatenate([*arrays, last])).to(self._device)


# ---------------------------------------------------------------------- collection

TEAM_STREAM = 4  # branch of the seed tree for teams that are restarted after a fault


class TeamActor(EpisodeActor):
    """One group's agents, whose complete teams go to a learner."""

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
        for team in self.episodes.take():
            self.learner.offer(team)
        return actions

    def forget(self, agents: NDArray[np.int64]) -> None:
        """The episodes under way of these agents, which are whole teams."""
        self.episodes.forget(agents)
        self.states[agents] = 0.0


class TeamCollector(Collector):
    """A collector whose teams stay in step.

    A copy that a fault restarted begins other episodes than its team: then the whole team begins
    anew, with a seed of its own.
    """

    def __init__(
        self,
        vec: Vector,
        actors: list[TeamActor],
        team_size: int,
        seed: int,
        view: ViewBatch | None = None,
        first_team: int = 0,
    ) -> None:
        super().__init__(vec, actors, view)
        self._teams, self._team_size, self._seed = actors, team_size, seed
        self._first_team = first_team  # of all ranks' teams, the first one here
        self.mended = 0

    @torch.no_grad()
    def handle(self, batch: Batch) -> None:
        """Act on one batch."""
        broken = np.zeros(self.vec.num_envs, np.bool_)
        for group, own in zip(batch.groups, self.vec.groups, strict=True):
            broken |= ~group.rows.valid.reshape(-1, own.num_agents).all(1)
        if broken.any():
            self.episodes.note(batch.infos)
            batch = replace(self._begin_teams(broken), infos={})
        super().handle(batch)

    def forget_all(self) -> None:
        """All episodes under way, since every environment begins anew."""
        for actor in self._teams:
            actor.forget(np.arange(actor.episodes.shape.agents))

    def _begin_teams(self, broken: NDArray[np.bool_]) -> Batch:
        size = self._team_size
        hit = np.repeat(broken.reshape(-1, size).any(1), size)
        self.mended += 1
        teams = [self._first_team + env // size for env in range(len(hit))]
        seeds = [derive(self._seed, TEAM_STREAM, self.mended, team) for team in teams]
        for actor, group in zip(self._teams, self.vec.groups, strict=True):
            actor.forget(np.flatnonzero(np.repeat(hit, group.num_agents)))
        return self.vec.reset_some(hit, seeds)


# ---------------------------------------------------------------------- algorithm


class GRPO(Algorithm):
    """GRPO for each group of agents.

    Args:
        context: What the run hands in.
    """

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
        self.collector: TeamCollector = TeamCollector(
            vec, self._actors, cfg.vec.group_size, cfg.seed, self._recall, first
        )
        self.episodes = self.collector.episodes

    def _make_actor(self, group: AgentGroup) -> TeamActor:
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
        optimiser = make_optimizer(policy, cfg.train.optimizer_config())
        learner = GRPOLearner(
            policy, optimiser, cfg.train, self._random[1], group, model, self.ranks
        )
        store = EpisodeShape(
            agents,
            cfg.vec.group_size,
            policy.distribution.num_samples,
            cfg.train.ahead,
            cfg.train.longest,
        )
        episodes = Episodes(policy.stored(group), store)
        return TeamActor(policy, episodes, self._device, self._random[0], learner)

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
            set_learning_rate(actor.learner.optimiser, rate)
            found = actor.learner.update(progress)
            found["given_up"] = float(actor.episodes.given_up)
            prefix = "" if len(self._actors) == 1 else f"{group.name}/"
            losses |= {f"{prefix}{name}": value for name, value in found.items()}
        return losses

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs."""
        tensors: Tensors = {}
        optimisers = []
        for i, actor in enumerate(self._actors):
            optimiser = actor.learner.optimiser
            optimisers.append(save_network(tensors, i, actor.policy, optimiser))
            tensors[f"episodes_{i}"] = {**actor.episodes.state_dict(), "recurrent": actor.states}
            tensors[f"learner_{i}"] = actor.learner.state_dict()
        if self._recall is not None:
            tensors |= self._recall.state()
        save_environments(tensors, self.collector)
        state = {
            "optimisers": optimisers,
            "random": save_rng(self._random),
            "backend": [self.vec.backend, self.vec.num_workers],
            "mended": self.collector.mended,
        }
        return tensors, state

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        for i, actor in enumerate(self._actors):
            optimiser = actor.learner.optimiser
            load_network(tensors, i, actor.policy, optimiser, state["optimisers"][i])
            arrays = as_arrays(tensors[f"episodes_{i}"])
            actor.states.copy_(torch.from_numpy(arrays.pop("recurrent")))
            actor.episodes.load_state_dict(arrays)
            actor.learner.load_state_dict(tensors[f"learner_{i}"])
        load_rng(self._random, state["random"])
        self.collector.steps = int(state["steps"])
        self.collector.mended = int(state["mended"])
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
