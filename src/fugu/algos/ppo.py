"""PPO: settings, loss, critics, update, algorithm; read it top to bottom.

An update reads complete segments. With `advantage="gae"` their advantages are computed once, as in
the PPO paper; with `"vtrace"` they are computed again for every minibatch from the ratios that the
minibatches before it wrote back. Segments are drawn by how much there is to learn from them (with
`alpha` at 0 they are shuffled and each is used once an epoch), and the clipped objective takes one
step. The learning rate can follow the measured KL divergence (`desired_kl`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

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
    import_object,
    load_environments,
    load_network,
    load_rng,
    save_environments,
    save_network,
    save_rng,
)
from fugu.algos.exploration import Novelty, SelfImitationBuffer
from fugu.algos.native_backend import make_native_learner
from fugu.algos.optimizers import make_optimizer, set_learning_rate
from fugu.algos.ppo_loss import (
    PpoLoss,
    ValueLoss,
    fused_ppo_loss,
    loss_settings,
    ppo_loss_reference,
)
from fugu.algos.segment_view import (
    CriticTarget,
    Minibatch,
    MinibatchIndices,
    SegmentView,
    side_by_side,
)
from fugu.algos.settings import LearningConfig
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    Fraction,
    FractionAboveZero,
    NonNegativeFloat,
    NonNegativeInt,
    NonNegativeOrInfinite,
    PositiveFloat,
    PositiveInt,
    PositiveOrInfinite,
)
from fugu.core.ranks import SINGLE_PROCESS, Ranks, moments_of
from fugu.core.seeding import derive
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.native.priorities import sample_segments, segment_probabilities
from fugu.nets.learning import NativeLearner
from fugu.policies.config import PolicyConfig, PolicyEngine
from fugu.policies.policy import Policy
from fugu.rollout.actor import Actor, ReturnNormalizer
from fugu.rollout.collector import Collector, NativeCollector, ViewBatch, can_fill_segments
from fugu.rollout.forwards import LearnerForward, load_forward, make_forward
from fugu.rollout.observation_views import Recall

log = logging.getLogger("fugu")
FEW_ROWS = 16  # of a minibatch: steps of the same few segments are much alike
RATE_STEP, RATE_SCALES = 1.5, (0.01, 10.0)  # of the learning rate that follows the KL divergence
STILL = 400.0  # below this part of the desired KL divergence, a policy has converged
SUMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "rows")  # of a loss


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class PPOConfig(LearningConfig):
    """Settings of PPO."""

    horizon: PositiveInt = 32
    """Steps of a row."""
    rows: NonNegativeInt = 0
    """Rows of an update; 0: one for each agent."""
    epochs: PositiveInt = 4
    """How often an update goes through its rows."""
    replay_ratio: PositiveFloat | None = None
    """How often a step is learned from on average, if that is no whole number of epochs."""
    minibatches: PositiveInt = 4
    """Parts of an epoch; each is one step of the optimiser."""
    draw: Literal["auto", "rows", "steps"] = "auto"
    """What minibatches are drawn of: whole rows, or single steps, which are less alike. Auto takes
    steps where a minibatch would have fewer than 16 rows, if the policy remembers nothing and rows
    are not preferred."""
    microbatch: NonNegativeInt = 0
    """Steps that torch computes at a time; gradients of a minibatch's parts are added up. 0:
    32,768, or as many as see 64 MiB. The native engine has tiles of its own and refuses others."""
    gamma: Fraction = 0.99
    """Discount of a step."""
    lambda_: Fraction = 0.95
    """Decay of the advantage's trace."""
    advantage: Literal["gae", "vtrace"] = "vtrace"
    """How advantages are estimated: `gae`, once per update, as in the PPO paper, CleanRL and
    Stable-Baselines3; `vtrace`, again for every minibatch with the ratios of the policy as it is by
    then, clipped by rho_clip and c_clip, as in PufferLib."""
    rho_clip: NonNegativeOrInfinite = 1.0
    """The most that a ratio weighs a step's own error."""
    c_clip: NonNegativeOrInfinite = 1.0
    """The most that a ratio weighs the trace."""
    first_ratios: Literal["one", "measured"] = "one"
    """The ratios that an update begins with: 1, as published, or what the policy says of its rows
    now, for a forward pass more; rows that are older than the policy need it."""
    clip: PositiveOrInfinite = 0.2
    """How far a ratio may go from 1 before it is cut."""
    value_clip: PositiveOrInfinite = 0.2
    """How far a value may go from what it was, for `clipped` and `huber_clipped`."""
    value_loss: ValueLoss = "huber"
    """How values are fitted to returns: squared errors (`mse`), the Huber loss, or the larger loss
    of the new value and of one at most `value_clip` from the old (`clipped`: of squared errors,
    `huber_clipped`: of Huber losses, as in the MAPPO paper)."""
    huber_delta: PositiveFloat = 10.0
    """Error beyond which the Huber losses become linear."""
    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NonNegativeFloat = 0.01
    """Weight of the entropy bonus, at the start."""
    final_entropy_coefficient: NonNegativeFloat | None = 0.0
    """The same at the end, reached linearly; "none": as at the start."""
    normalise_advantages: bool = True
    """Whether a minibatch's advantages are centered and scaled."""
    advantage_std_min: NonNegativeFloat = 0.0
    """The least standard deviation that normalized advantages are divided by, in units of
    normalized rewards. Where rewards are rare, advantages are only noise for long, and a larger
    value keeps that noise from moving the policy; 0: none."""
    alpha: NonNegativeFloat = 0.0
    """How much rows of large advantages are preferred; 0: all alike."""
    beta: Fraction = 0.4
    """How far preference is corrected at the start; it grows to 1."""
    priorities: Literal["corrected", "published"] = "corrected"
    """How preference is corrected: `corrected` weights each segment by its probability of being in
    the minibatch, in all losses, which is unbiased once beta is 1; `published` as PufferLib does,
    in the policy's loss alone."""
    target_kl: PositiveFloat | None = None
    """End an update when the policy has gone so far; never if not given."""
    desired_kl: PositiveFloat | None = None
    """Adapt the learning rate to the KL divergence of an update's last epoch: it is divided by 1.5
    above twice this value, multiplied by 1.5 below half of it, and led back to the schedule below a
    400th of it, where the policy has converged. None: keep to the schedule."""
    final_desired_kl: PositiveFloat | None = None
    """The same at the end of the run, reached linearly; None: as at the start."""
    normalise_rewards: bool = True
    """Whether rewards are counted in units of how much discounted returns vary."""
    reward_clip: PositiveFloat | None = None
    """The most that a reward counts, either way; all of it if not given."""
    intrinsic: Literal["none", "rnd"] = "none"
    """Reward added for exploring: `rnd` rewards observations that are new (random network
    distillation), for tasks whose own rewards are rare."""
    intrinsic_coef: NonNegativeFloat = 0.5
    """Weight of the intrinsic reward at the start; it falls linearly to 0 at `intrinsic_end`."""
    intrinsic_end: FractionAboveZero = 0.5
    """Share of the run after which there is no intrinsic reward."""
    max_gradient_norm: PositiveOrInfinite = 0.5
    """Gradients are scaled down to this norm."""
    best_episodes: NonNegativeInt = 0
    """How many of the best episodes are kept, and learned to be done again; 0: none."""
    best_coefficient: NonNegativeFloat = 0.1
    """Weight of how unlikely those are, for the mean of their steps."""
    loss: str | None = None
    """Loss function of your own in place of PPO's, as package.module:function; torch learns then.
    See `fugu.algos.ppo.ppo_loss` for what it is given and what it returns."""
    engine: Literal["auto", "torch", "native"] = "auto"
    """Who collects and learns: torch, which knows every policy and device, or the native core,
    which is faster on a CPU; auto takes that where it can, and says why if it cannot."""

    def minibatch_steps(self, agents: int) -> int:
        """Return the steps of a minibatch, of one segment an agent."""
        return max(1, agents * self.horizon // self.minibatches)

    def draws_steps(self, rows: int, state_size: int) -> bool:
        """Whether minibatches are drawn of steps, for so many rows and numbers remembered."""
        if self.draw == "auto":
            return self.alpha == 0 and not state_size and rows < FEW_ROWS * self.minibatches
        return self.draw == "steps"

    def parts(self, rows: int) -> int:
        """Minibatches of an epoch of so many rows or steps: none is empty."""
        return min(self.minibatches, rows)

    def bounds(self, rows: int) -> NDArray[np.int64]:
        """Return where each minibatch of an epoch begins and the last ends; sizes differ by 1.

        >>> PPOConfig(minibatches=4).bounds(10).tolist()
        [0, 2, 5, 7, 10]
        """
        return np.arange(self.parts(rows) + 1) * rows // max(1, self.parts(rows))

    def optimizer_steps(self, rows: int) -> int:
        """Minibatches of an update of so many rows or steps."""
        ratio = self.epochs if self.replay_ratio is None else self.replay_ratio
        return max(1, round(ratio * self.parts(rows)))


# ---------------------------------------------------------------------- loss

Loss: TypeAlias = Callable[[Policy, Minibatch, PPOConfig], tuple[Tensor, Mapping[str, Tensor]]]


def ppo_loss(
    policy: Policy, batch: Minibatch, cfg: PPOConfig
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Return PPO's loss and its metrics: the mean over the steps of a minibatch that count.

    A function of your own with the same arguments and results takes its place: `fugu.train(env,
    loss=my_loss)` or `--train.loss package.module:my_loss`. Steps of weight 0 do not count. Metrics
    are scalars to be logged, but for `ratios` `[rows, horizon]`, the new over the old probability
    of each action: with `advantage="vtrace"` it is written back, and `approx_kl` is what
    `target_kl` and `desired_kl` look at. Where they are missing they are computed.

    Args:
        policy: The policy that learns.
        batch: Segments, or single steps as segments of length 1.
        cfg: The settings, with the entropy coefficient of this update.
    """
    count = float((batch.weights != 0).sum())
    found = _ppo_loss(policy, batch, cfg, max(1.0, count))
    means = {name: value / max(1.0, count) for name, value in found.metrics.items()}
    del means["rows"]
    return found.loss, means | {"ratios": found.ratios.view_as(batch.weights)}


def _ppo_loss(policy: Policy, batch: Minibatch, cfg: PPOConfig, normalizer: float) -> PpoLoss:
    """Return the summed loss over `normalizer`, so that parts of a minibatch add up to it."""
    params, values = policy.forward_segments(batch.observations, batch.states, batch.resets)
    distribution = policy.distribution
    arguments: dict[str, Any] = {
        "params": params.flatten(0, 1),
        "values": values.flatten(0, 1)[:, : batch.old_values.shape[-1]],
        "choices": distribution.choices,
        "continuous": distribution.num_continuous,
        "samples": batch.samples.flatten(0, 1),
        "old_log_probs": batch.old_log_probabilities.flatten(),
        "advantages": batch.advantages.flatten(),
        "old_values": batch.old_values.flatten(0, 1),
        "returns": batch.returns.flatten(0, 1),
        "weights": batch.weights.flatten(),
        "masks": None if batch.masks is None else batch.masks.flatten(0, 1),
        "normaliser": normalizer,
        "cfg": cfg,
    }
    if distribution.squashes:
        return ppo_loss_reference(**arguments, evaluate=distribution.evaluate)
    return fused_ppo_loss(**arguments)


# ---------------------------------------------------------------------- critics


class Critics:
    """What the critics of a policy predict, and how their advantages become one.

    This is the plain one: a single critic of the reward. `SafePPO` hands in critics of costs,
    `MAPPO` one that predicts normalized returns.

    Args:
        cfg: The settings.
        ranks: The processes that train together.
    """

    def __init__(self, cfg: PPOConfig, ranks: Ranks = SINGLE_PROCESS) -> None:
        self.cfg, self.ranks = cfg, ranks

    def begin_update(
        self, segments: Segments, rows: NDArray[np.int64], reward_divisor: float, progress: float
    ) -> tuple[list[CriticTarget], Metrics]:
        """Prepare for an update from these segments.

        Args:
            segments: The buffer.
            rows: The segments of the update.
            reward_divisor: What rewards are divided by.
            progress: Share of the run that is done, from 0 to 1.

        Returns:
            The target of each critic, that of the reward first; metrics.
        """
        cfg = self.cfg
        rewards = segments.rewards[:, side_by_side(rows)] / np.float32(reward_divisor)
        if cfg.reward_clip is not None:
            np.clip(rewards, -cfg.reward_clip, cfg.reward_clip, out=rewards)
        return [CriticTarget(rewards, cfg.gamma, cfg.lambda_)], {}

    def preference(
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Return the advantages `[horizon, rows]` by which segments are prioritized."""
        first: NDArray[np.float32] = advantages[0]
        return first

    def combine(
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_] | None
    ) -> NDArray[np.float32]:
        """Return the advantages `[horizon, rows]` that the policy learns from.

        Args:
            advantages: Those of each critic, `[critics, horizon, rows]`.
            valid: Steps that count `[horizon, rows]`; None: all.
        """
        first: NDArray[np.float32] = advantages[0]
        if not self.cfg.normalise_advantages:
            return first
        return standardize(first, valid, self.ranks, self.cfg.advantage_std_min)

    def minibatches(
        self, data: SegmentView, indices: MinibatchIndices
    ) -> Iterator[tuple[NDArray[np.int64], Minibatch]]:
        """Yield the parts of a minibatch that are computed at a time, with their indices."""
        size = data.microbatch(self.cfg.microbatch)
        for begin in range(0, len(indices.chosen), size):
            part = slice(begin, begin + size)
            yield indices.chosen[part], data.minibatch(indices, part)

    def report(self, data: SegmentView) -> Metrics:
        """Return metrics of an update besides its losses."""
        found = data.explained_variances(data.returns(), self.ranks)
        return {"explained_variance": found[0]}

    def state_dict(self) -> dict[str, Any]:
        """Return what the critics need to resume exactly, besides the policy."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""


# ---------------------------------------------------------------------- update


class PPOLearner:
    """Updates one policy from its group's segments.

    Args:
        policy: The policy to improve.
        optimizer: The optimizer of its parameters.
        critics: What its critics predict.
        random: Draws the segments of minibatches.
        native: Computes gradients in place of torch; None: torch does.
        loss: Computes the loss in place of PPO's; None: PPO's.
        novelty: Rewards new observations; None: no intrinsic rewards.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        critics: Critics,
        random: np.random.Generator,
        native: NativeLearner | None = None,
        loss: Loss | None = None,
        novelty: Novelty | None = None,
    ) -> None:
        self.policy, self.optimizer, self.critics, self.native = policy, optimizer, critics, native
        self.cfg, self._ranks, self._random = critics.cfg, critics.ranks, random
        self._loss, self._novelty = loss, novelty
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self._best = SelfImitationBuffer(self.cfg.best_episodes)
        self._rate_scale = 1.0  # of the scheduled learning rate
        if self.cfg.draw == "steps" and policy.state_size:
            raise UsageError(
                "train.draw: given 'steps' with a policy that remembers, whose steps belong "
                "together; allowed: 'rows', 'auto'."
            )

    def change(self, cfg: PPOConfig) -> None:
        """Take new settings, some of `PPO.changeable`, from the next update on."""
        self.cfg = self.critics.cfg = cfg

    def update(self, segments: Segments, progress: float, reward_divisor: float = 1.0) -> Metrics:
        """Learn from complete segments, release them, and return metrics.

        Args:
            segments: A buffer that is full, here or at another rank.
            progress: Share of the run that is done, from 0 to 1.
            reward_divisor: What rewards are divided by.
        """
        cfg, usual = self.cfg, segments.shape.rows
        rows = segments.take() if segments.full or self._ranks.size == 1 else np.arange(0)
        targets, metrics = self.critics.begin_update(segments, rows, reward_divisor, progress)
        if self._novelty is not None:
            metrics |= self._add_novelty(segments, rows, targets[0].numbers, progress)
        by_steps = cfg.draws_steps(usual, self.policy.state_size)
        clips = (cfg.rho_clip, cfg.c_clip) if cfg.advantage == "vtrace" else None
        threads = self.native.threads if self.native else 0
        data = SegmentView(segments, rows, targets, clips, threads, by_steps=by_steps)
        if cfg.best_episodes:
            self._best.offer(segments, rows)
        if cfg.first_ratios == "measured" and cfg.advantage == "vtrace":
            self._measure_ratios(data, np.arange(data.count))
        metrics |= self._learn(data, usual * cfg.horizon if by_steps else usual, progress)
        if self.policy.scales:
            self.policy.note(data.observations())
        segments.release(rows)
        return metrics | self.critics.report(data)

    def _learn(self, data: SegmentView, usual: int, progress: float) -> Metrics:
        """Take the optimizer's steps of an update; return means over its minibatches."""
        cfg, parts = self._annealed(progress), self.cfg.parts(usual)
        if self.native is not None:
            self.native.flat.show_grads()
        for group in self.optimizer.param_groups:
            group["lr"] *= self._rate_scale
        sums: dict[str, list[float]] = {}
        order = self._random.permutation(data.count)
        for number in range(cfg.optimizer_steps(usual)):
            if cfg.alpha == 0 and number % parts == 0 and number:
                order = self._random.permutation(data.count)
            indices = self._draw(data, order, number % parts, progress)
            found = self._step(data, indices, cfg)
            for name, value in found.items():
                sums.setdefault(name, []).append(value)
            if cfg.target_kl is not None:
                moved = self._ranks.sum(np.array([found["approx_kl"]], np.float64))[0]
                if moved > cfg.target_kl:
                    break
        if cfg.desired_kl is not None:
            last = sums["approx_kl"][-parts:]
            share = np.array([sum(last) / len(last)], np.float64)
            final = cfg.desired_kl if cfg.final_desired_kl is None else cfg.final_desired_kl
            desired = cfg.desired_kl + (final - cfg.desired_kl) * progress
            self._adapt_rate(float(self._ranks.sum(share)[0]), desired)
        means = {name: sum(values) / len(values) for name, values in sums.items()}
        rate = self.optimizer.param_groups[0]["lr"]
        return self._ranks.add_up(means) | {"learning_rate": rate}

    def _adapt_rate(self, measured: float, desired: float) -> None:
        """Scale the learning rate by how far the measured KL divergence is from the desired one."""
        low, high = RATE_SCALES
        if measured > 2.0 * desired:
            self._rate_scale /= RATE_STEP
        elif measured < desired / STILL:
            # A converged policy moves at no rate until something unusual happens, which a large
            # rate would turn into a collapse: go back to the schedule.
            low, high = min(self._rate_scale, 1.0), max(self._rate_scale / RATE_STEP, 1.0)
            self._rate_scale *= RATE_STEP
        elif measured < desired / 2.0:
            self._rate_scale *= RATE_STEP
        self._rate_scale = min(max(self._rate_scale, low), high)

    def _annealed(self, progress: float) -> PPOConfig:
        """Return the settings with the entropy coefficient of this update."""
        cfg = self.cfg
        final, entropy = cfg.final_entropy_coefficient, cfg.entropy_coefficient
        entropy += 0.0 if final is None else (final - entropy) * progress
        return replace(cfg, entropy_coefficient=entropy)

    def _add_novelty(
        self,
        segments: Segments,
        rows: NDArray[np.int64],
        rewards: NDArray[np.float32],
        progress: float,
    ) -> Metrics:
        """Add intrinsic rewards to `rewards` `[horizon, segments]`; return their metrics."""
        cfg, novelty = self.cfg, self._novelty
        weight = cfg.intrinsic_coef * max(0.0, 1.0 - progress / cfg.intrinsic_end)
        if novelty is None or not weight or not len(rows):
            return {}
        seen = segments.observations.read(rows).flatten(0, 1)
        found = novelty.rewards(seen).reshape(len(rows), -1).T
        valid = segments.valid[:, rows]
        rewards += np.where(valid, np.float32(weight) * found, 0.0)
        flat = torch.from_numpy(valid.T.ravel())
        error = novelty.learn(seen[flat], self._random)
        return {"intrinsic_reward": float(found[valid].mean()), "prediction_error": error}

    # ------------------------------------------------------------------ minibatches

    def _draw(
        self, data: SegmentView, order: NDArray[np.int64], number: int, progress: float
    ) -> MinibatchIndices:
        """Draw the given minibatch of an epoch."""
        cfg, bounds = self.cfg, self.cfg.bounds(len(order))
        first, last = bounds[number : number + 2] if len(order) else (0, 0)
        advantages, chosen = data.advantages(data.ratios), order[first:last]
        weights = np.ones(len(chosen), np.float32)
        if cfg.alpha and len(order):
            chosen, weights = self._prioritize(advantages, data, len(chosen), progress)
        valid = None if data.whole else data.valid.take(chosen, -1)
        normalized = self.critics.combine(advantages.take(chosen, -1), valid)
        count = normalized.size if valid is None else int(valid.sum())
        if cfg.normalise_advantages and self._ranks.sum(np.array([count], np.float64))[0] < 2:
            # A single number has no deviation of its own: scale it by those of the whole update.
            whole = self.critics.combine(advantages, None if data.whole else data.valid)
            normalized = whole.take(chosen, -1)
        if cfg.priorities == "published":  # PufferLib weights the policy's loss alone
            normalized, weights = normalized * weights, np.ones_like(weights)
        return MinibatchIndices(chosen, weights, normalized, advantages, count)

    def _prioritize(
        self, advantages: NDArray[np.float32], data: SegmentView, size: int, progress: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw segments or steps by their advantages; return them and the weight of each."""
        cfg = self.cfg
        corrected = cfg.priorities == "corrected"
        # The published annealing has a stray alpha and never reaches 1.
        growth = progress if corrected else cfg.alpha * progress
        preference = self.critics.preference(advantages, data.valid)
        return sample_segments(
            segment_probabilities(preference, cfg.alpha, valid=data.valid),
            self._random.random(data.count),
            size,
            beta=cfg.beta + (1 - cfg.beta) * growth,
            correction="inclusion" if corrected else "draw",
        )

    # ------------------------------------------------------------------ one step

    def _step(self, data: SegmentView, indices: MinibatchIndices, cfg: PPOConfig) -> Metrics:
        """Take one step of the optimizer on a minibatch and write its new ratios back.

        The metrics are this rank's share; all ranks add theirs up once an update.
        """
        count = float(max(1, self._ranks.sum(np.array([indices.count], np.float64))[0]))
        if self.native is not None:
            totals = self._native_gradients(self.native, data, indices, cfg, count)
        elif self._loss is not None:
            totals = self._custom_gradients(self._loss, data, indices, cfg, count)
        else:
            totals = self._gradients(data, indices, cfg, count)
        if cfg.best_episodes:
            totals["best_loss"] = self._imitate() * count
        self._ranks.add_gradients(self._parameters)
        if self.native is not None:
            norm = self.native.flat.clip_grads(cfg.max_gradient_norm)
            self.optimizer.step()
            self.native.reload()
        else:
            norm = float(nn.utils.clip_grad_norm_(self._parameters, cfg.max_gradient_norm))
            self.optimizer.step()
        totals.pop("rows", None)
        means = {name: value / count for name, value in totals.items()}
        return means | {"gradient_norm": norm / self._ranks.size}

    def _gradients(
        self, data: SegmentView, indices: MinibatchIndices, cfg: PPOConfig, count: float
    ) -> Metrics:
        """Compute the gradients of PPO's loss by torch; return its sums."""
        self.optimizer.zero_grad(set_to_none=True)
        totals: Metrics = dict.fromkeys(SUMS, 0.0)
        for chosen, batch in self.critics.minibatches(data, indices):
            loss, ratios, sums = _ppo_loss(self.policy, batch, cfg, count)
            loss.backward()  # type: ignore[no-untyped-call]
            data.ratios[:, chosen] = ratios.view(-1, data.length).cpu().numpy().T
            for name, value in sums.items():
                totals[name] += float(value)
        return totals

    def _custom_gradients(
        self,
        loss_function: Loss,
        data: SegmentView,
        indices: MinibatchIndices,
        cfg: PPOConfig,
        count: float,
    ) -> Metrics:
        """Compute the gradients of a loss function of the user's; return sums of its metrics."""
        self.optimizer.zero_grad(set_to_none=True)
        totals: Metrics = {}
        for chosen, batch in self.critics.minibatches(data, indices):
            loss, found = loss_function(self.policy, batch, cfg)
            own = int((batch.weights != 0).sum())  # the loss is the mean over these
            (loss * (own / count)).backward()  # type: ignore[no-untyped-call]
            metrics = dict(found)
            ratios = metrics.pop("ratios", None)
            if ratios is not None:
                data.ratios[:, chosen] = ratios.detach().view(-1, data.length).cpu().numpy().T
            elif cfg.advantage == "vtrace" or cfg.target_kl or cfg.desired_kl:
                metrics |= self._measure_ratios(data, chosen)
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + float(value.detach()) * own
        return totals

    def _native_gradients(
        self,
        native: NativeLearner,
        data: SegmentView,
        indices: MinibatchIndices,
        cfg: PPOConfig,
        count: float,
    ) -> Metrics:
        """Compute the gradients of PPO's loss by the native learner; return its sums."""
        every = (data.segments.shape.horizon, -1)
        sums = native.learn(
            data.segments,
            data.places(indices.chosen),
            indices.weights,
            indices.normalized,
            indices.advantages.reshape(data.critics, *every),
            self.policy.distribution.choices,
            loss_settings(cfg, count),
            data.ratios.reshape(every),
        )
        return dict(zip(SUMS, sums, strict=True))

    @torch.no_grad()
    def _measure_ratios(self, data: SegmentView, chosen: NDArray[np.int64]) -> dict[str, Tensor]:
        """Write the ratios of the policy as it is now; return the mean KL divergence."""
        ones = np.ones(len(chosen), np.float32)
        advantages = np.zeros((data.critics, *data.ratios.shape), np.float32)
        normalized = np.zeros((data.length, len(chosen)), np.float32)
        every = MinibatchIndices(chosen, ones, normalized, advantages, normalized.size)
        divergence, rows, size = 0.0, 0.0, data.microbatch(self.cfg.microbatch)
        for begin in range(0, len(chosen), size):
            part = slice(begin, begin + size)
            _, ratios, sums = _ppo_loss(self.policy, data.minibatch(every, part), self.cfg, 1.0)
            data.ratios[:, chosen[part]] = ratios.view(-1, data.length).cpu().numpy().T
            divergence, rows = divergence + float(sums["approx_kl"]), rows + float(sums["rows"])
        return {"approx_kl": torch.tensor(divergence / max(1.0, rows))}

    def _imitate(self) -> float:
        """Add the gradient of imitating the best episodes; return this rank's share of the loss."""
        if not len(self._best):
            return 0.0
        unlikely = self._best.loss(self.policy, self._random) / self._ranks.size
        (self.cfg.best_coefficient * unlikely).backward()  # type: ignore[no-untyped-call]
        return float(unlikely.detach())

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming exactly needs besides the policy and the optimizer."""
        best = {f"best.{name}": value for name, value in self._best.state_dict().items()}
        rate = {} if self.cfg.desired_kl is None else {"rate_scale": np.array(self._rate_scale)}
        novelty = {} if self._novelty is None else self._novelty.state_dict()
        novelty = {f"novelty.{name}": value for name, value in novelty.items()}
        return best | rate | novelty | self.critics.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""

        def under(prefix: str) -> dict[str, Any]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        self._best.load_state_dict(under("best."))
        if self._novelty is not None:
            self._novelty.load_state_dict(under("novelty."))
        self._rate_scale = float(state.get("rate_scale", 1.0))
        self.critics.load_state_dict(state)


def standardize(
    numbers: NDArray[np.float32],
    valid: NDArray[np.bool_] | None,
    ranks: Ranks = SINGLE_PROCESS,
    least: float = 0.0,
) -> NDArray[np.float32]:
    """Return numbers with mean 0 and deviation 1 where they are valid, over all ranks.

    Args:
        numbers: `[horizon, rows]`.
        valid: Which of them count; None: all.
        ranks: The processes whose numbers are counted together.
        least: Numbers whose deviation is smaller are divided by this instead.
    """
    inside = ranks.moments(moments_of(numbers.ravel() if valid is None else numbers[valid]))
    if not inside.count:
        return numbers.copy()
    deviation = np.sqrt(inside.variance) + 1e-8
    divisor = max(deviation, deviation.dtype.type(least))
    found: NDArray[np.float32] = (numbers - inside.mean) / divisor
    return found


# ---------------------------------------------------------------------- algorithm


@dataclass(frozen=True)
class GroupSetup:
    """What PPO learns one group of agents with.

    Attributes:
        policy: The policy.
        stored: The group as segments store it: with the rows that its policy is shown.
        critics: What its critics predict.
    """

    policy: Policy
    stored: AgentGroup
    critics: Critics


@dataclass(frozen=True)
class GroupLearning:
    """One group of agents: who acts and records, and who learns from the records."""

    group: AgentGroup
    actor: Actor[Segments]
    returns: ReturnNormalizer
    learner: PPOLearner


class PPO(Algorithm):
    """PPO for each group of agents.

    Args:
        context: What the run hands in.
        set_up: Makes the policy and the critics of a group from its policy settings; the plain
            ones if not given.
        view: Makes what actors are shown of a batch, from the vector and the actors, if that is not
            just the batch.
    """

    Config = PPOConfig
    supports_ranks = supports_loss = True
    supports_leagues = True
    changeable = (
        "learning_rate",
        "final_learning_rate",
        "epochs",
        "clip",
        "value_clip",
        "value_coefficient",
        "entropy_coefficient",
        "final_entropy_coefficient",
        "max_gradient_norm",
        "target_kl",
        "reward_clip",
        "intrinsic_coef",
        "best_coefficient",
    )

    def __init__(
        self,
        context: RunContext,
        set_up: Callable[[AgentGroup, PolicyConfig], GroupSetup] | None = None,
        view: Callable[[Sequence[Actor[Segments]]], ViewBatch] | None = None,
    ) -> None:
        cfg, ranks = context.config, context.ranks
        self.context, self.cfg, self.vec, self.ranks = context, cfg, context.vector, ranks
        self._device, self._set_up = context.device, set_up or self._plain_setup
        self._loss = context.loss
        if self._loss is None and cfg.train.loss is not None:
            self._loss = import_object(cfg.train.loss, "train.loss")
        self._random = [
            ranks.row_generator(derive(cfg.seed, SAMPLING_STREAM)),
            ranks.own_generator(derive(cfg.seed, ROW_STREAM)),
        ]
        torch.manual_seed(derive(cfg.seed, WEIGHT_STREAM) >> 1)
        self._why_torch = ""
        self.groups = [self._add_group(group) for group in self.vec.groups]
        self.policies = [each.actor.policy for each in self.groups]
        self._threads = torch.get_num_threads()
        if all(each.learner.native for each in self.groups):
            torch.set_num_threads(1)  # idle threads of torch would take the native learner's cores
        self._view = None if view is None else view([each.actor for each in self.groups])
        self._recall = Recall.of(self.policies, cfg.policy.recall_worth)
        make_opponents = context.opponents
        self.opponents = None if make_opponents is None else make_opponents(context, self)
        self.collector: Collector = self._make_collector()
        self.episodes = self.collector.episodes

    def _plain_setup(self, group: AgentGroup, cfg: PolicyConfig) -> GroupSetup:
        policy = self.context.policy_factory(group, cfg)
        return GroupSetup(policy, group, Critics(self.cfg.train, self.ranks))

    def make_policy(self, group: AgentGroup) -> Policy:
        """Return a new policy of a group, with weights of its own."""
        agents = self.vec.num_envs * group.num_agents
        precision = choose_precision(self.cfg.policy, agents, self._device)
        return self._set_up(group, replace(self.cfg.policy, precision=precision)).policy

    def _add_group(self, group: AgentGroup) -> GroupLearning:
        cfg, device, agents = self.cfg, self._device, self.vec.num_envs * group.num_agents
        precision = choose_precision(cfg.policy, agents, device)
        setup = self._set_up(group, replace(cfg.policy, precision=precision))
        policy = setup.policy.to(device)
        if cfg.train.compile:
            compile_policy(policy)
        shape = SegmentShape(
            agents,
            cfg.train.rows or agents,
            cfg.train.horizon,
            policy.distribution.num_samples,
            policy.state_size,
            policy.num_critics,
            group.num_costs,
        )
        stored = policy.stored(setup.stored)
        layout = stored.observation_layout
        segments = Segments(stored, shape, device, cfg.train.cpu_offload)
        returns = ReturnNormalizer(agents, cfg.train.gamma, self.ranks)
        native, reason = make_native_learner(
            cfg, policy, layout, precision, device, custom_loss=self._loss is not None
        )
        self._why_torch = self._why_torch or reason
        engine: PolicyEngine = cfg.policy.engine
        if engine == "auto" and (cfg.train.compile or precision == "bfloat16"):
            engine = "torch"
        everyone = agents * self.ranks.size  # so that any number of ranks chooses alike
        forward = (
            LearnerForward(native) if native else make_forward(policy, layout, engine, everyone)
        )
        actor = Actor(policy, segments, returns, device, self._random[0], forward)
        novelty = Novelty(layout, device) if cfg.train.intrinsic == "rnd" else None
        learner = PPOLearner(
            policy,
            make_optimizer(policy, cfg.train.optimizer_config(), native),
            setup.critics,
            self._random[1],
            native,
            self._loss,
            novelty,
        )
        return GroupLearning(group, actor, returns, learner)

    def _make_collector(self) -> Collector:
        actors = [each.actor for each in self.groups]
        if self.opponents is not None:
            return self.opponents.make_collector(self.vec, actors)
        view = self._view or self._recall
        native, actor = self.groups[0].learner.native, actors[0]
        if native and not view and can_fill_segments(self.vec, native, actor.policy.distribution):
            return NativeCollector(self.vec, actor, native)
        return Collector(self.vec, actors, view)

    # ------------------------------------------------------------------ collect and update

    def start(self, seed: int) -> None:
        """Begin a run: reset all environments with this seed."""
        if self.opponents is not None:
            self.opponents.start()
        self.collector.start(self.context.reset_seeds(seed))

    def collect(self) -> None:
        """Step the environments until the segments of some group are full."""
        for each in self.groups:
            each.actor.forward.refresh()
        self.collector.collect()

    def update(self, progress: float) -> Metrics:
        """Learn from the segments that are full, at whatever rank, and return metrics."""
        metrics: Metrics = {}
        rate = self.context.learning_rate(progress)
        for each in self.groups:
            if not self.ranks.any(each.actor.store.full):
                continue
            set_learning_rate(each.learner.optimizer, rate)
            divisor = each.returns.divisor if self.cfg.train.normalise_rewards else 1.0
            found = each.learner.update(each.actor.store, progress, divisor)
            prefix = "" if len(self.groups) == 1 else f"{each.group.name}/"
            metrics |= {f"{prefix}{name}": value for name, value in found.items()}
        if self.opponents is not None:
            self.opponents.after_update()
        return metrics

    def change(self, train: PPOConfig) -> None:
        """Take new settings, some of `changeable`, from the next update on."""
        self.cfg = replace(self.cfg, train=train)
        for each in self.groups:
            each.learner.change(train)

    @property
    def engines(self) -> list[str]:
        """What computes the gradients, group by group: "native" or "torch"."""
        return ["native" if each.learner.native else "torch" for each in self.groups]

    @property
    def policy_engines(self) -> list[str]:
        """What computes the forward passes of collection, group by group."""
        return [each.actor.forward.engine for each in self.groups]

    def facts(self) -> State:
        """Return what computes gradients and forward passes."""
        return {"engines": self.engines, "policy_engines": self.policy_engines}

    def notices(self) -> list[str]:
        """Return why torch learns where the native learner might, and what offloading saves."""
        found, device = [], self._device
        if self._why_torch and self.cfg.train.engine == "auto" and device.type == "cpu":
            found.append(f"torch learns this policy, not the native learner: {self._why_torch}")
        if self.cfg.train.cpu_offload:
            stores = [each.actor.store.observations for each in self.groups]
            spared = sum(store.offloaded_bytes for store in stores)
            found.append(
                f"cpu_offload: {device} is spared {spared / 1e6:.1f} MB"
                if spared
                else "cpu_offload: there is nothing to spare on a cpu"
            )
        return found

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs.

        Environments that are stepping are waited for; their results are used after resuming.
        """
        tensors: Tensors = {}
        opponents = None if self.opponents is None else self.opponents.state_dict(tensors)
        optimizers = []
        for i, each in enumerate(self.groups):
            optimizers.append(save_network(tensors, i, each.actor.policy, each.learner.optimizer))
            segments = each.actor.store.state_dict()
            tensors[f"segments_{i}"] = {**segments, "recurrent": each.actor.states}
            tensors[f"scale_{i}"] = dict(each.returns.state_dict())
            if learner_state := each.learner.state_dict():
                tensors[f"learner_{i}"] = learner_state
        if self._recall is not None:
            tensors |= self._recall.state()
        save_environments(tensors, self.collector)
        state = {
            "optimisers": optimizers,
            "random": save_rng(self._random),
            "backend": [self.vec.backend, self.vec.num_workers],
            **self.facts(),
        }
        return tensors, state if opponents is None else {**state, "league": opponents}

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        if self.opponents is not None:
            self.opponents.load_state_dict(tensors, state["league"])
        for i, each in enumerate(self.groups):
            load_network(
                tensors, i, each.actor.policy, each.learner.optimizer, state["optimisers"][i]
            )
            arrays = as_arrays(tensors[f"segments_{i}"])
            each.actor.states.copy_(torch.from_numpy(arrays.pop("recurrent")))
            each.actor.store.load_state_dict(arrays)
            each.returns.load_state_dict(as_arrays(tensors[f"scale_{i}"]))
            each.learner.load_state_dict(tensors.get(f"learner_{i}", {}))
        self._load_engines(state)
        load_rng(self._random, state["random"])
        self.collector.steps = int(state["steps"])
        if self._recall is not None and "environments" in tensors:
            self._recall.load(tensors)
        if not load_environments(tensors, self.collector):
            self.start(int(state["reset_seed"]))

    def _load_engines(self, state: Mapping[str, Any]) -> None:
        """Keep the engines of the run so far, where the settings leave them open."""
        torches = ["torch"] * len(self.groups)
        learned, computed = state.get("engines", torches), state.get("policy_engines", torches)
        for each, learner_engine, policy_engine in zip(self.groups, learned, computed, strict=True):
            actor, learner = each.actor, each.learner
            if learner.native and learner_engine == "torch" and self.cfg.train.engine == "auto":
                self._use_torch(learner)
            elif not learner.native and learner_engine == "native":
                log.warning(
                    "this run was learned by the native learner and continues with torch: its "
                    "numbers will differ in the last digits"
                )
            if learner.native:
                learner.native.refresh()
            elif self.cfg.policy.engine == "auto":
                layout, agents = (
                    actor.store.group.observation_layout,
                    actor.store.shape.agents,
                )
                actor.forward = load_forward(policy_engine, actor.policy, layout, agents)

    def _use_torch(self, learner: PPOLearner) -> None:
        """Learn and collect with torch from now on; what listens to episodes keeps listening."""
        kept = learner.optimizer.state_dict()
        learner.native = None
        learner.optimizer = make_optimizer(learner.policy, self.cfg.train.optimizer_config())
        learner.optimizer.load_state_dict(kept)
        torch.set_num_threads(self._threads)
        before, self.collector = self.collector, self._make_collector()
        self.collector.episodes, self.collector.on_batch = before.episodes, before.on_batch
