"""PPO with V-trace-clipped advantages and prioritised segments: settings, loss, update.

An update reads complete segments. With `advantage="gae"` their advantages are computed once, as in
the PPO paper; with `"vtrace"` they are computed again for every minibatch from the ratios that the
minibatches before it wrote back. Segments are drawn by how much there is to learn from them (with
`alpha` at 0 they are shuffled and each is used once an epoch), and the clipped objective takes one
step. The learning rate can follow the measured KL divergence (`desired_kl`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fugu.algos.best_episodes import BestEpisodes
from fugu.algos.novelty import Novelty
from fugu.algos.ppo_loss import fused_ppo_loss, loss_settings
from fugu.algos.ppo_loss_reference import PpoLoss, PpoLossConfig, ValueLoss, ppo_loss_reference
from fugu.algos.rows import Draw, Minibatch, Rows, Signal, Steps, side_by_side
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    CheckedConfig,
    Fraction,
    FractionAboveZero,
    NonNegativeFloat,
    NonNegativeInt,
    NonNegativeOrInfinite,
    PositiveFloat,
    PositiveInt,
    PositiveOrInfinite,
)
from fugu.core.ranks import ALONE, Ranks, moments_of
from fugu.data.segments import Segments
from fugu.native.priorities import sample_segments, segment_probabilities
from fugu.nets.learning import NativeLearner
from fugu.policies.policy import Policy
from fugu.spaces import Layout

Metrics = dict[str, float]
FEW_ROWS = 16  # of a minibatch: what a few rows saw is much alike
RATE_STEP, RATE_SCALES = 1.5, (0.01, 10.0)  # of the learning rate that follows desired_kl
SUMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "rows")  # of a loss


@dataclass(frozen=True)
class PPOConfig(CheckedConfig):
    """Settings of PPO."""

    section: ClassVar[str] = "train"

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
    """Whether a minibatch's advantages are centred and scaled."""
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
    above twice this value and multiplied by 1.5 below half of it. None: keep to the schedule."""
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
    engine: Literal["auto", "torch", "native"] = "auto"
    """Who collects and learns: torch, which knows every policy and device, or the native core,
    which is faster on a CPU; auto takes that where it can, and says why if it cannot."""

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

    def optimiser_steps(self, rows: int) -> int:
        """Minibatches of an update of so many rows or steps."""
        ratio = self.epochs if self.replay_ratio is None else self.replay_ratio
        return max(1, round(ratio * self.parts(rows)))


def ppo_loss(policy: Policy, batch: Minibatch, cfg: PpoLossConfig, normaliser: float) -> PpoLoss:
    """The loss of some rows, the new ratios, and sums for the record.

    It is a sum over `normaliser`, so that losses of a minibatch's parts add up to its own.
    """
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
        "normaliser": normaliser,
        "cfg": cfg,
    }
    if distribution.squashes:
        return ppo_loss_reference(**arguments, evaluate=distribution.evaluate)
    return fused_ppo_loss(**arguments)


class PPO:
    """Updates one policy from its group's segments.

    Args:
        policy: To be improved.
        optimiser: Of its parameters.
        cfg: The settings.
        random: Draws the rows of minibatches.
        ranks: Who learn together; each has rows of its own, and all take the same steps.
        core: What computes gradients in place of torch; torch does, if there is none.
        layout: The layout of stored observations; needed for intrinsic rewards alone.
    """

    def __init__(
        self,
        policy: Policy,
        optimiser: torch.optim.Optimizer,
        cfg: PPOConfig,
        random: np.random.Generator,
        ranks: Ranks = ALONE,
        core: NativeLearner | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.policy, self.optimiser, self.cfg, self._random = policy, optimiser, cfg, random
        self._ranks, self.core = ranks, core
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self._best = BestEpisodes(cfg.best_episodes)
        self._novelty = None
        if cfg.intrinsic == "rnd":
            if layout is None:
                raise UsageError("layout: given nothing; intrinsic rewards need one.")
            self._novelty = Novelty(layout, next(policy.parameters()).device)
        self._rate_scale = 1.0  # factor of the scheduled learning rate; adapts to the measured KL
        if cfg.draw == "steps" and policy.state_size:
            raise UsageError(
                "train.draw: given 'steps' with a policy that remembers, whose steps belong "
                "together; allowed: 'rows', 'auto'."
            )

    def update(
        self, segments: Segments, progress: float, reward_divisor: float = 1.0
    ) -> dict[str, float]:
        """Learn from complete rows and give them back; what there is to say of it.

        Args:
            segments: That are full, here or at another rank.
            progress: Of the whole training, from 0 to 1.
            reward_divisor: What rewards are divided by.
        """
        cfg, usual = self.cfg, segments.shape.rows
        rows = segments.take() if segments.full or self._ranks.size == 1 else np.arange(0)
        signals = self._signals(segments, rows, reward_divisor)
        bonus = self._add_novelty(segments, rows, signals[0].numbers, progress)
        steps = cfg.draws_steps(usual, self.policy.state_size)
        clips = (cfg.rho_clip, cfg.c_clip) if cfg.advantage == "vtrace" else None
        threads = self.core.threads if self.core else 0
        data = (Steps if steps else Rows)(segments, rows, signals, clips, threads)
        usual *= cfg.horizon if steps else 1
        if cfg.best_episodes:
            self._best.offer(segments, rows)
        if cfg.first_ratios == "measured" and cfg.advantage == "vtrace":
            self._measure(data)
        parts, loss_cfg = cfg.parts(usual), self._loss_config(progress)
        sums: dict[str, list[float]] = {}
        if self.core is not None:
            self.core.block.show_grads()
        for parameters in self.optimiser.param_groups:
            parameters["lr"] *= self._rate_scale
        order = self._random.permutation(data.count)
        for number in range(cfg.optimiser_steps(usual)):
            if cfg.alpha == 0 and number % parts == 0 and number:
                order = self._random.permutation(data.count)
            draw = self._draw(data, order, number % parts, progress)
            metrics = self._step(data, draw, loss_cfg)
            for name, value in metrics.items():
                sums.setdefault(name, []).append(value)
            if cfg.target_kl is not None:
                moved = self._ranks.sum(np.array([metrics["approx_kl"]], np.float64))[0]
                if moved > cfg.target_kl:
                    break
        if cfg.desired_kl is not None:
            final = cfg.desired_kl if cfg.final_desired_kl is None else cfg.final_desired_kl
            desired = cfg.desired_kl + (final - cfg.desired_kl) * progress
            self._adapt_rate(sums["approx_kl"][-parts:], desired)
        if self.policy.scales:
            self.policy.note(data.observations())
        segments.release(rows)
        told = {name: sum(values) / len(values) for name, values in sums.items()}
        told = self._ranks.add_up(told) | {"learning_rate": self.optimiser.param_groups[0]["lr"]}
        return told | bonus | self._report(data)

    def _add_novelty(
        self,
        segments: Segments,
        rows: NDArray[np.int64],
        rewards: NDArray[np.float32],
        progress: float,
    ) -> dict[str, float]:
        """Add intrinsic rewards to `rewards` `[horizon, segments]`; return their metrics."""
        cfg = self.cfg
        weight = cfg.intrinsic_coef * max(0.0, 1.0 - progress / cfg.intrinsic_end)
        if self._novelty is None or not weight or not len(rows):
            return {}
        seen = segments.observations.read(rows).flatten(0, 1)
        found = self._novelty.rewards(seen).reshape(len(rows), -1).T
        valid = segments.valid[:, rows]
        rewards += np.where(valid, np.float32(weight) * found, 0.0)
        flat = torch.from_numpy(valid.T.ravel())
        error = self._novelty.learn(seen[flat], self._random)
        return {"intrinsic_reward": float(found[valid].mean()), "prediction_error": error}

    def _adapt_rate(self, divergences: list[float], desired: float) -> None:
        """Scale the next update's learning rate by the KL divergence of the last epoch."""
        share = np.array([sum(divergences) / len(divergences)], np.float64)
        measured = float(self._ranks.sum(share)[0])
        if measured > 2.0 * desired:
            self._rate_scale /= RATE_STEP
        elif measured < desired / 2.0:
            self._rate_scale *= RATE_STEP
        self._rate_scale = min(max(self._rate_scale, RATE_SCALES[0]), RATE_SCALES[1])

    def state_dict(self) -> dict[str, Any]:
        """Return what PPO needs besides the policy and the optimiser to resume exactly."""
        best = {f"best.{name}": value for name, value in self._best.state_dict().items()}
        scale = {} if self.cfg.desired_kl is None else {"rate_scale": np.array(self._rate_scale)}
        novelty = {} if self._novelty is None else self._novelty.state_dict()
        return best | scale | {f"novelty.{name}": value for name, value in novelty.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""

        def under(prefix: str) -> dict[str, Any]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        self._best.load_state_dict(under("best."))
        if self._novelty is not None:
            self._novelty.load_state_dict(under("novelty."))
        self._rate_scale = float(state.get("rate_scale", 1.0))

    # ------------------------------------------------------------------ what derived ones change

    def _signals(
        self, segments: Segments, rows: NDArray[np.int64], reward_divisor: float
    ) -> list[Signal]:
        """What each critic foretells; the first one the rewards."""
        cfg = self.cfg
        rewards = segments.rewards[:, side_by_side(rows)] / np.float32(reward_divisor)
        if cfg.reward_clip is not None:
            np.clip(rewards, -cfg.reward_clip, cfg.reward_clip, out=rewards)
        return [Signal(rewards, cfg.gamma, cfg.lambda_)]

    def _preference(
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """By what `[horizon, rows]` rows are preferred, of all advantages."""
        first: NDArray[np.float32] = advantages[0]
        return first

    def _weigh(
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_] | None
    ) -> NDArray[np.float32]:
        """How good the actions of a minibatch were, `[horizon, rows]`; all count if not told."""
        first: NDArray[np.float32] = advantages[0]
        if not self.cfg.normalise_advantages:
            return first
        return standardised(first, valid, self._ranks)

    def _batch(self, data: Rows, draw: Draw) -> Minibatch:
        """Some rows as the loss takes them."""
        return data.minibatch(draw)

    def _report(self, data: Rows) -> dict[str, float]:
        """What there is to say of an update beside its losses."""
        told = data.explained_variances(data.returns(), self._ranks)
        return {"explained_variance": told[0]}

    # ------------------------------------------------------------------ the update

    @torch.no_grad()
    def _measure(self, data: Rows) -> None:
        """Write the ratios of the policy as it is."""
        nothing = np.zeros((data.critics, *data.ratios.shape), np.float32)
        ones = np.ones(data.count, np.float32)
        every = Draw(np.arange(data.count), ones, nothing[0], nothing, nothing[0].size)
        rows_at_once = self._rows_at_once(data)
        for begin in range(0, data.count, rows_at_once):
            part = every.part(begin, begin + rows_at_once)
            new = ppo_loss(self.policy, data.minibatch(part), PpoLossConfig(), 1.0).ratios
            data.ratios[:, part.chosen] = new.view(-1, data.length).cpu().numpy().T

    def _rows_at_once(self, data: Rows) -> int:
        return max(1, (self.cfg.microbatch or data.steps_at_once) // data.length)

    def _draw(self, data: Rows, order: NDArray[np.int64], number: int, progress: float) -> Draw:
        """Draw the given minibatch of an epoch."""
        advantages = data.advantages(data.ratios)
        chosen, weights = self._choose(advantages, data, order, number, progress)
        valid = None if data.whole else data.valid.take(chosen, -1)
        merits = self._weigh(advantages.take(chosen, -1), valid)
        count = merits.size if valid is None else int(valid.sum())
        if self.cfg.normalise_advantages and self._ranks.sum(np.array([count], np.float64))[0] < 2:
            # A single number has no deviation of its own: scale it by those of the whole update.
            merits = self._weigh(advantages, None if data.whole else data.valid).take(chosen, -1)
        if self.cfg.priorities == "published":  # PufferLib weights the policy's loss alone
            merits, weights = merits * weights, np.ones_like(weights)
        return Draw(chosen, weights, merits, advantages, count)

    def _choose(
        self,
        advantages: NDArray[np.float32],
        data: Rows,
        order: NDArray[np.int64],
        number: int,
        progress: float,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Choose a minibatch's segments or steps, and the weight of each."""
        cfg, bounds = self.cfg, self.cfg.bounds(len(order))
        first, last = bounds[number : number + 2] if len(order) else (0, 0)
        if cfg.alpha == 0 or not len(order):
            chosen = order[first:last]
            return chosen, np.ones(len(chosen), np.float32)
        corrected = cfg.priorities == "corrected"
        # The published annealing has a stray alpha and never reaches 1.
        growth = progress if corrected else cfg.alpha * progress
        beta = cfg.beta + (1 - cfg.beta) * growth
        preference = self._preference(advantages, data.valid)
        probabilities = segment_probabilities(preference, cfg.alpha, valid=data.valid)
        uniforms, size = self._random.random(len(order)), int(last - first)
        return sample_segments(
            probabilities,
            uniforms,
            size,
            beta=beta,
            correction="inclusion" if corrected else "draw",
        )

    def _loss_config(self, progress: float) -> PpoLossConfig:
        """Settings of the loss, of which the weight of entropy changes while a run goes on."""
        cfg = self.cfg
        final, entropy = cfg.final_entropy_coefficient, cfg.entropy_coefficient
        entropy += 0.0 if final is None else (final - entropy) * progress
        return PpoLossConfig(
            cfg.clip,
            cfg.value_loss,
            cfg.value_clip,
            cfg.huber_delta,
            cfg.value_coefficient,
            entropy,
        )

    def _step(self, data: Rows, draw: Draw, loss_cfg: PpoLossConfig) -> Metrics:
        """One step of the optimiser on some rows, whose new ratios are written back.

        What it tells is the share of this rank; all of them together are told once an update.
        """
        cfg = self.cfg
        count = float(max(1, self._ranks.sum(np.array([draw.count], np.float64))[0]))
        compute = self._gradients if self.core is None else self._native_gradients
        totals = compute(data, draw, loss_cfg, count)
        if cfg.best_episodes:
            totals["best_loss"] = self._imitate() * count
        self._ranks.add_gradients(self._parameters)
        norm = self._clip_gradients()
        self.optimiser.step()
        if self.core is not None:
            self.core.reload()
        del totals["rows"]
        told = {name: value / count for name, value in totals.items()}
        return told | {"gradient_norm": norm / self._ranks.size}

    def _clip_gradients(self) -> float:
        """Scale gradients down to the norm they may have, and say which they had."""
        most = self.cfg.max_gradient_norm
        if self.core is not None:
            return self.core.block.clip_grads(most)
        return float(nn.utils.clip_grad_norm_(self._parameters, most))

    def _gradients(self, data: Rows, draw: Draw, loss_cfg: PpoLossConfig, count: float) -> Metrics:
        """Gradients of the loss of some rows, by torch; sums for the record."""
        self.optimiser.zero_grad(set_to_none=True)
        totals: Metrics = dict.fromkeys(SUMS, 0.0)
        rows_at_once = self._rows_at_once(data)
        for begin in range(0, len(draw.chosen), rows_at_once):
            part = draw.part(begin, begin + rows_at_once)
            loss, new, metrics = ppo_loss(self.policy, self._batch(data, part), loss_cfg, count)
            loss.backward()  # type: ignore[no-untyped-call]
            data.ratios[:, part.chosen] = new.view(-1, data.length).cpu().numpy().T
            for name, value in metrics.items():
                totals[name] += float(value)
        return totals

    def _native_gradients(
        self, data: Rows, draw: Draw, loss_cfg: PpoLossConfig, count: float
    ) -> Metrics:
        """The same by the native core."""
        assert self.core is not None
        every = (data.segments.shape.horizon, -1)
        sums = self.core.learn(
            data.segments,
            data.places(draw.chosen),
            draw.weights,
            draw.merits,
            draw.advantages.reshape(data.critics, *every),
            self.policy.distribution.choices,
            loss_settings(loss_cfg, count),
            data.ratios.reshape(every),
        )
        return dict(zip(SUMS, sums, strict=True))

    def _imitate(self) -> float:
        """Add the gradient of how unlikely the best episodes are; this rank's share of that."""
        if not len(self._best):
            return 0.0
        unlikely = self._best.loss(self.policy, self._random) / self._ranks.size
        (self.cfg.best_coefficient * unlikely).backward()  # type: ignore[no-untyped-call]
        return float(unlikely.detach())


def standardised(
    numbers: NDArray[np.float32], valid: NDArray[np.bool_] | None, ranks: Ranks = ALONE
) -> NDArray[np.float32]:
    """Numbers with mean 0 and deviation 1 where they are valid, over all ranks."""
    inside = ranks.moments(moments_of(numbers.ravel() if valid is None else numbers[valid]))
    if not inside.count:
        return numbers.copy()
    found: NDArray[np.float32] = (numbers - inside.mean) / (np.sqrt(inside.variance) + 1e-8)
    return found
