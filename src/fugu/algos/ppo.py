"""PPO with V-trace-clipped advantages and prioritised segments: settings, loss, update.

An update reads complete rows of segments. For each minibatch the advantages of all rows are
computed anew with the ratios that the minibatches before it wrote back, rows are drawn by how much
is to be learned from them, and the clipped objective takes one step. With `rho_clip` and `c_clip`
at infinity or ratios at 1 this is GAE; with `alpha` at 0 rows are shuffled and each is used once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.algos.best_episodes import BestEpisodes
from fugu.algos.ppo_loss import fused_ppo_loss
from fugu.algos.ppo_loss_reference import PpoLoss, PpoLossConfig, ppo_loss_reference
from fugu.core.errors import UsageError
from fugu.core.ranks import ALONE, Ranks, moments_of
from fugu.data.segments import Segments
from fugu.native.advantage import advantages as compute_advantages
from fugu.native.priorities import sample_segments, segment_probabilities
from fugu.policies.policy import Policy

Metrics = dict[str, Tensor]
SUMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "rows")  # of a loss
MOST_STEPS, MOST_BYTES = 32_768, 64 * 2**20  # of a microbatch, and of what it sees


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO."""

    horizon: int = 32
    """Steps of a row."""
    rows: int = 0
    """Rows of an update; 0: one for each agent."""
    epochs: int = 4
    """How often an update goes through its rows."""
    replay_ratio: float | None = None
    """How often a step is learned from on average, if that is no whole number of epochs."""
    minibatches: int = 4
    """Parts of an epoch; each is one step of the optimiser."""
    microbatch: int = 0
    """Steps that are computed at a time; gradients of a minibatch's parts are added up. 0: 32,768,
    or as many as see 64 MiB."""
    gamma: float = 0.99
    """Discount of a step."""
    lambda_: float = 0.95
    """Decay of the advantage's trace."""
    rho_clip: float = 1.0
    """The most that a ratio weighs a step's own error."""
    c_clip: float = 1.0
    """The most that a ratio weighs the trace."""
    first_ratios: Literal["one", "measured"] = "one"
    """The ratios that an update begins with: 1, as published, or what the policy says of its rows
    now, for a forward pass more; rows that are older than the policy need it."""
    clip: float = 0.2
    """How far a ratio may go from 1 before it is cut."""
    value_clip: float = 0.2
    """How far a value may go from what it was, for the clipped value loss."""
    value_loss: Literal["clipped", "huber", "mse"] = "huber"
    """How values are fitted."""
    huber_delta: float = 10.0
    """Where the Huber loss becomes linear."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus, at the start."""
    final_entropy_coefficient: float | None = 0.0
    """The same at the end, reached linearly; "none": as at the start."""
    normalise_advantages: bool = True
    """Whether a minibatch's advantages are centred and scaled."""
    alpha: float = 0.0
    """How much rows of large advantages are preferred; 0: all alike."""
    beta: float = 0.4
    """How far preference is corrected at the start; it grows to 1."""
    priorities: Literal["corrected", "published"] = "corrected"
    """Importance weights divided by the largest and corrected fully in the end, or as published."""
    target_kl: float | None = None
    """End an update when the policy has gone so far; never if not given."""
    normalise_rewards: bool = True
    """Whether rewards are counted in units of how much discounted returns vary."""
    reward_clip: float | None = None
    """The most that a reward counts, either way; all of it if not given."""
    max_gradient_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    best_episodes: int = 0
    """How many of the best episodes are kept, and learned to be done again; 0: none."""
    best_coefficient: float = 0.1
    """Weight of how unlikely those are, for the mean of their steps."""

    def parts(self, rows: int) -> int:
        """Minibatches of an epoch of so many rows: none is empty."""
        return min(self.minibatches, rows)

    def optimiser_steps(self, rows: int) -> int:
        """Minibatches of an update of so many rows."""
        ratio = self.epochs if self.replay_ratio is None else self.replay_ratio
        return max(1, round(ratio * self.parts(rows)))

    def __post_init__(self) -> None:
        most = (("horizon", 1), ("epochs", 1), ("minibatches", 1))
        for name, low in (*most, ("microbatch", 0), ("best_episodes", 0)):
            if (given := getattr(self, name)) < low:
                raise UsageError(f"train.{name}: given {given}; allowed: {low} or more.")
        if self.replay_ratio is not None and self.replay_ratio <= 0.0:
            raise UsageError(f"train.replay_ratio: given {self.replay_ratio}; allowed: above 0.")
        for name in ("gamma", "lambda_"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"train.{name}: given {getattr(self, name)}; allowed: 0 to 1.")


@dataclass(frozen=True)
class Minibatch:
    """Rows of segments as tensors, `[rows, horizon, ...]`."""

    observations: Tensor
    samples: Tensor
    masks: Tensor | None
    states: Tensor  # [rows, state]
    resets: Tensor
    old_log_probabilities: Tensor
    old_values: Tensor  # [rows, horizon, critics]
    advantages: Tensor
    returns: Tensor  # [rows, horizon, critics]
    weights: Tensor  # 0 where a step does not count


@dataclass(frozen=True)
class Signal:
    """What one critic foretells the discounted sums of."""

    numbers: NDArray[np.float32]  # [horizon, rows]
    gamma: float
    lambda_: float


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
    """

    def __init__(
        self,
        policy: Policy,
        optimiser: torch.optim.Optimizer,
        cfg: PPOConfig,
        random: np.random.Generator,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.optimiser, self.cfg, self._random = policy, optimiser, cfg, random
        self._ranks = ranks
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self._best = BestEpisodes(cfg.best_episodes)

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
        data = Rows(segments, rows, self._signals(segments, rows, reward_divisor), cfg)
        if cfg.best_episodes:
            self._best.offer(segments, rows)
        ratios = np.ones(data.valid.shape, np.float32)
        if cfg.first_ratios == "measured":
            self._measure(data, ratios)
        parts = cfg.parts(usual)
        size = usual // parts
        sums: dict[str, list[Tensor]] = {}
        order = self._random.permutation(len(rows))
        for number in range(cfg.optimiser_steps(usual)):
            advantages = data.advantages(ratios)
            if cfg.alpha == 0 and number % parts == 0 and number:
                order = self._random.permutation(len(rows))
            chosen, weights = self._choose(advantages, data, order, number, size, progress)
            metrics = self._step(data, chosen, weights, advantages, ratios, progress)
            for name, value in metrics.items():
                sums.setdefault(name, []).append(value)
            if cfg.target_kl is not None and float(metrics["approx_kl"]) > cfg.target_kl:
                break
        if self.policy.scales:
            self.policy.note(data.observations())
        segments.release(rows)
        told = {name: float(torch.stack(values).mean()) for name, values in sums.items()}
        return told | self._report(data)

    def state_dict(self) -> dict[str, Any]:
        """What PPO remembers beside the policy and the optimiser: the best episodes."""
        return {f"best.{name}": value for name, value in self._best.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        best = {k.removeprefix("best."): v for k, v in state.items() if k.startswith("best.")}
        self._best.load_state_dict(best)

    # ------------------------------------------------------------------ what derived ones change

    def _signals(
        self, segments: Segments, rows: NDArray[np.int64], reward_divisor: float
    ) -> list[Signal]:
        """What each critic foretells; the first one the rewards."""
        cfg = self.cfg
        rewards = segments.rewards[:, rows] / np.float32(reward_divisor)
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
        self, advantages: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """How good the actions of a minibatch were, `[horizon, rows]`."""
        first: NDArray[np.float32] = advantages[0]
        if not self.cfg.normalise_advantages:
            return first
        return standardised(first, valid, self._ranks)

    def _batch(
        self,
        data: Rows,
        chosen: NDArray[np.int64],
        weights: NDArray[np.float32],
        merits: NDArray[np.float32],
        advantages: NDArray[np.float32],
    ) -> Minibatch:
        """Some rows as the loss takes them."""
        return data.minibatch(chosen, weights, merits, advantages)

    def _report(self, data: Rows) -> dict[str, float]:
        """What there is to say of an update beside its losses."""
        told = data.explained_variances(data.returns(), self._ranks)
        return {"explained_variance": told[0]}

    # ------------------------------------------------------------------ the update

    @torch.no_grad()
    def _measure(self, data: Rows, ratios: NDArray[np.float32]) -> None:
        """Write the ratios of the policy as it is."""
        every = np.arange(ratios.shape[1])
        nothing = np.zeros((data.critics, *ratios.shape), np.float32)
        rows_at_once = self._rows_at_once(data)
        for begin in range(0, len(every), rows_at_once):
            part = every[begin : begin + rows_at_once]
            weights = np.ones(len(part), np.float32)
            batch = data.minibatch(part, weights, nothing[0][:, part], nothing)
            new = ppo_loss(self.policy, batch, PpoLossConfig(), 1.0).ratios
            ratios[:, part] = new.view(-1, self.cfg.horizon).cpu().numpy().T

    def _rows_at_once(self, data: Rows) -> int:
        return max(1, (self.cfg.microbatch or data.steps_at_once) // self.cfg.horizon)

    def _choose(
        self,
        advantages: NDArray[np.float32],
        data: Rows,
        order: NDArray[np.int64],
        number: int,
        size: int,
        progress: float,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The rows of a minibatch, and how much each weighs."""
        cfg = self.cfg
        if cfg.alpha == 0:
            parts = max(1, cfg.parts(len(order)))
            first = number % parts * size
            last = len(order) if number % parts == parts - 1 else first + size
            chosen = order[first:last]
            return chosen, np.ones(len(chosen), np.float32)
        corrected = cfg.priorities == "corrected"
        # The published annealing has a stray alpha and never reaches 1.
        growth = progress if corrected else cfg.alpha * progress
        beta = cfg.beta + (1 - cfg.beta) * growth
        preference = self._preference(advantages, data.valid)
        chosen, weights, most = order, np.ones(len(order), np.float32), 0.0
        if len(order):
            probabilities = segment_probabilities(preference, cfg.alpha, valid=data.valid)
            uniforms = self._random.random(len(order))
            chosen, weights = sample_segments(
                probabilities, uniforms, size, beta=beta, normalise=corrected
            )
            most = float((len(order) * probabilities[chosen].min()) ** -beta)
        if corrected:  # by the largest weight of all ranks
            weights *= np.float32(most / self._ranks.largest(most))
        return chosen, weights

    def _step(
        self,
        data: Rows,
        chosen: NDArray[np.int64],
        weights: NDArray[np.float32],
        advantages: NDArray[np.float32],
        ratios: NDArray[np.float32],
        progress: float,
    ) -> Metrics:
        """One step of the optimiser on some rows; their new ratios are written back."""
        cfg = self.cfg
        final = cfg.final_entropy_coefficient
        entropy = cfg.entropy_coefficient
        entropy += 0.0 if final is None else (final - entropy) * progress
        valid = data.valid[:, chosen]
        merits = self._weigh(advantages[:, :, chosen], valid)
        count = float(max(1, self._ranks.sum(np.array([valid.sum()], np.float64))[0]))
        loss_cfg = PpoLossConfig(
            cfg.clip,
            cfg.value_loss,
            cfg.value_clip,
            cfg.huber_delta,
            cfg.value_coefficient,
            entropy,
        )
        self.optimiser.zero_grad(set_to_none=True)
        totals: Metrics = dict.fromkeys(SUMS, torch.zeros((), dtype=torch.float64))
        rows_at_once = self._rows_at_once(data)
        for begin in range(0, len(chosen), rows_at_once):
            part = slice(begin, begin + rows_at_once)
            batch = self._batch(data, chosen[part], weights[part], merits[:, part], advantages)
            loss, new, metrics = ppo_loss(self.policy, batch, loss_cfg, count)
            loss.backward()  # type: ignore[no-untyped-call]
            ratios[:, chosen[part]] = new.view(-1, cfg.horizon).cpu().numpy().T
            for name, value in metrics.items():
                totals[name] = totals[name] + value.cpu()
        if cfg.best_episodes:
            totals["best_loss"] = self._imitate() * count
        self._ranks.add_gradients(self._parameters)
        norm = nn.utils.clip_grad_norm_(self._parameters, cfg.max_gradient_norm)
        self.optimiser.step()
        del totals["rows"]
        totals = self._ranks.add_up(totals)
        told = {name: value / count for name, value in totals.items()}
        return told | {"gradient_norm": norm.detach().cpu().double()}

    def _imitate(self) -> Tensor:
        """Add the gradient of how unlikely the best episodes are; this rank's share of that."""
        if not len(self._best):
            return torch.zeros((), dtype=torch.float64)
        unlikely = self._best.loss(self.policy) / self._ranks.size
        (self.cfg.best_coefficient * unlikely).backward()  # type: ignore[no-untyped-call]
        return unlikely.detach().cpu().double()


def standardised(
    numbers: NDArray[np.float32], valid: NDArray[np.bool_], ranks: Ranks = ALONE
) -> NDArray[np.float32]:
    """Numbers with mean 0 and deviation 1 where they are valid, over all ranks."""
    inside = ranks.moments(moments_of(numbers[valid]))
    if not inside.count:
        return numbers.copy()
    found: NDArray[np.float32] = (numbers - inside.mean) / (np.sqrt(inside.variance) + 1e-8)
    return found


def side_by_side(rows: NDArray[np.int64]) -> Any:
    """The slice that rows are if each follows the one before, else themselves.

    >>> side_by_side(np.array([3, 4, 5])), side_by_side(np.array([3, 5]))
    (slice(3, 6, None), array([3, 5]))
    """
    follow = len(rows) and (np.diff(rows) == 1).all()
    return slice(int(rows[0]), int(rows[-1]) + 1) if follow else rows


class Rows:
    """The rows of one update; numbers stand time by time, `[horizon, rows]`."""

    def __init__(
        self,
        segments: Segments,
        rows: NDArray[np.int64],
        signals: list[Signal],
        cfg: PPOConfig,
    ) -> None:
        self._segments, self._rows, self._signals, self._cfg = segments, rows, signals, cfg
        own = side_by_side(rows)  # nothing is copied then
        self.valid = segments.valid[:, own]
        self._values = segments.values[: len(signals), :, own]
        self._final_values = segments.final_values[: len(signals), :, own]
        self._terminations = segments.terminations[:, own]
        self._truncations = segments.truncations[:, own]
        self._resets = segments.resets(rows)
        # Row by row, as minibatches take them.
        self._valid_rows = np.ascontiguousarray(self.valid.T)
        self._log_rows = np.ascontiguousarray(segments.log_probabilities[:, own].T)
        self._value_rows = np.ascontiguousarray(self._values[:, :-1].T)  # critics last

    @property
    def critics(self) -> int:
        """How many there are."""
        return len(self._signals)

    @property
    def steps_at_once(self) -> int:
        """Steps that are worth computing together; fewer if they see much, for memory's sake."""
        table = self._segments.observations.table
        seen = table.shape[-1] * table.element_size()
        return max(1, min(MOST_STEPS, MOST_BYTES // max(1, seen)))

    def advantages(self, ratios: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of all rows for each critic, with these ratios: `[critics, horizon, rows]`."""
        out = np.empty((len(self._signals), *self.valid.shape), np.float32)
        for i, signal in enumerate(self._signals):
            compute_advantages(
                signal.numbers,
                self._values[i],
                self._final_values[i],
                self._terminations,
                self._truncations,
                gamma=signal.gamma,
                lambda_=signal.lambda_,
                rho_clip=self._cfg.rho_clip,
                c_clip=self._cfg.c_clip,
                ratios=ratios,
                valid=self.valid,
                out=out[i],
            )
        return out

    def minibatch(
        self,
        chosen: NDArray[np.int64],
        weights: NDArray[np.float32],
        merits: NDArray[np.float32],
        advantages: NDArray[np.float32],
    ) -> Minibatch:
        """Some of the rows as tensors."""
        segments, rows = self._segments, self._rows[chosen]
        masks = segments.masks[rows] if segments.masks.shape[-1] else None
        if masks is not None and masks.all():
            masks = None
        values = self._value_rows[chosen]
        observations, samples = segments.observations.read(rows), segments.samples[rows]
        valid = self._valid_rows[chosen]
        broken = ~valid
        if broken.any():  # what is not a number there must not reach a weight as 0 times itself
            observations[torch.from_numpy(broken)] = 0
            samples[broken] = 0
        device = observations.device

        def there(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return Minibatch(
            observations=observations,
            samples=there(samples),
            masks=None if masks is None else there(masks),
            states=there(segments.states[rows]),
            resets=torch.from_numpy(self._resets[chosen]),
            old_log_probabilities=there(self._log_rows[chosen]),
            old_values=there(values),
            advantages=there(np.ascontiguousarray(merits.T, np.float32)),
            returns=there(advantages[:, :, chosen].T + values),
            weights=there(valid * weights[:, None]),
        )

    def targets(
        self, chosen: NDArray[np.int64], advantages: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """What the critics should say of some rows, `[critics, horizon, rows]`."""
        found: NDArray[np.float32] = advantages[:, :, chosen] + self._values[:, :-1, chosen]
        return found

    def observations(self) -> Tensor:
        """Of all steps that count, `[steps, size]`."""
        seen = self._segments.observations.read(self._rows)
        return seen[torch.from_numpy(self.valid.T).to(seen.device)]

    def returns(self) -> NDArray[np.float32]:
        """What each critic should have said, `[critics, horizon, rows]`."""
        ones = np.ones(self.valid.shape, np.float32)
        found: NDArray[np.float32] = self.advantages(ones) + self._values[:, :-1]
        return found

    def explained_variances(
        self, returns: NDArray[np.float32], ranks: Ranks = ALONE
    ) -> list[float]:
        """How much of the returns each critic told; 1: all, 0: no more than their mean."""
        found = []
        for critic, values in zip(returns, self._values[:, :-1], strict=True):
            inside = critic[self.valid]
            spread = float(ranks.moments(moments_of(inside)).variance)
            error = float(ranks.moments(moments_of(inside - values[self.valid])).variance)
            found.append(1 - error / spread if spread > 1e-12 else math.nan)
        return found
