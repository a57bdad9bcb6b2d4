"""Decision Transformer: learns from recorded episodes which actions lead to which return.

A batch has sequences of steps of episodes: returns to go, observations, actions. The policy
predicts each action from what comes before it; the loss is the negative log-likelihood of choices
and the squared error (or the negative log-likelihood) of numbers. Asked for a high return, it then
acts as in episodes that had one. With a percentile it is behavior cloning on the best episodes:
the same network and loss, without returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fugu.algos.algorithm import (
    WEIGHT_STREAM,
    Algorithm,
    Metrics,
    PolicyFactory,
    RunContext,
    State,
    Tensors,
    load_network,
    load_rng,
    save_network,
    save_rng,
)
from fugu.algos.optimizers import make_optimizer, set_learning_rate
from fugu.algos.settings import NO_CRITIC, LearningConfig, Unused, VecConfig
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    FiniteFloat,
    Interval,
    NonNegativeFloat,
    PositiveInt,
    PositiveOrInfinite,
)
from fugu.core.seeding import derive
from fugu.data.offline import Dataset, group_folders
from fugu.envs.contract import AgentGroup
from fugu.policies.decision_transformer import (
    DecisionTransformer,
    DecisionTransformerPolicyConfig,
    make_decision_transformer,
)
from fugu.rollout.collector import EpisodeStatistics

Sums = dict[str, Tensor]
DRAWING_STREAM, DROPOUT_STREAM = 2, 4  # branches of the seed tree
OBSERVATIONS_AT_ONCE = 65_536  # when they are normalized


@dataclass(frozen=True)
class DecisionTransformerConfig(LearningConfig):
    """Settings of the Decision Transformer."""

    total_steps: int = 2_000_000
    """Steps of sequences to learn from, padding left out: a batch of 64 has up to 1,280."""
    learning_rate: float = 0.001
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: float = 0.1
    weight_decay: float = 1e-4
    data: Path = Path()
    """The folder of recorded episodes, as `fugu record ENV --data FOLDER` writes it."""
    batch_size: PositiveInt = 64
    """Sequences of a step of the optimiser."""
    batches: PositiveInt = 50
    """Steps of the optimiser in an update."""
    percentile: Annotated[float, Interval(0.0, 100.0, above=True)] | None = None
    """Behaviour cloning on the episodes of highest return that have this share of all steps, in
    percent, without any return to go; a Decision Transformer of all episodes if not given."""
    loss: Literal["mse", "normal"] = "mse"
    """How numbers are fitted: squared error, or the likelihood of a normal. Choices always have
    their likelihood."""
    return_scale: NonNegativeFloat = 0.0
    """What returns to go are divided by; 0: the largest of the data."""
    target: FiniteFloat | None = None
    """The return that evaluations ask for; the highest of the data if not given."""
    max_gradient_norm: PositiveOrInfinite = 0.25
    """Gradients are scaled down to this norm."""


# ---------------------------------------------------------------------- data


@dataclass(frozen=True)
class DecisionSequences:
    """Sequences of steps of episodes, `[batch, window, ...]`, padded on the left."""

    observations: NDArray[Any]  # rows of the layout
    actions: NDArray[Any]  # rows of the action layout
    returns: NDArray[np.float32]  # sums of rewards from each step on
    times: NDArray[np.int64]  # steps since the episode began
    mask: NDArray[np.bool_]  # false where there is only padding


class SequenceSampler:
    """Draws sequences that begin at any step, all with the same probability.

    A sequence ends with its episode if that is shorter than the window.

    Args:
        data: The episodes.
        window: Steps of a sequence.
        percentile: Draw only from the episodes of highest return that have this share of all
            steps, in percent; `episodes` are their indices, the best last.
        delayed: Count rewards only at the end: the return to go is the whole return at every step.
    """

    def __init__(
        self, data: Dataset, window: int, *, percentile: float = 100.0, delayed: bool = False
    ) -> None:
        if not len(data):
            raise UsageError(f"data: given {str(data.folder)!r} without an episode; allowed: some.")
        self.data, self.window = data, window
        self.episodes = best_episodes(data, percentile)
        self.returns_to_go = returns_to_go(data, delayed=delayed)
        # Where each episode ends among the steps that are drawn from.
        self._ends = np.cumsum(data.lengths[self.episodes])

    @property
    def steps(self) -> int:
        """Steps of the episodes that are drawn from."""
        return int(self._ends[-1])

    def draw(self, batch: int, random: np.random.Generator) -> DecisionSequences:
        """Draw sequences."""
        return self.take(random.integers(self.steps, size=batch))

    def take(self, drawn: NDArray[np.int64]) -> DecisionSequences:
        """Return the sequences that begin at these steps, counted through `episodes`."""
        which = np.searchsorted(self._ends, drawn, side="right")
        episodes = self.episodes[which]
        lengths = self.data.lengths[episodes]
        first = drawn - (self._ends[which] - lengths)  # within the episode
        count = np.minimum(lengths - first, self.window)
        # Padding comes first: column c has step c - (window - count) of the sequence.
        inside = np.arange(self.window) - (self.window - count)[:, None]  # [batch, window]
        mask = inside >= 0
        times = np.where(mask, first[:, None] + inside, 0)
        steps = self.data.starts[episodes][:, None] + times
        observations = self.data.observations[steps + episodes[:, None]]
        actions = self.data.actions[steps]
        observations[~mask], actions[~mask] = 0, 0
        returns = np.where(mask, self.returns_to_go[steps], np.float32(0.0))
        return DecisionSequences(observations, actions, returns, times, mask)


def returns_to_go(data: Dataset, *, delayed: bool = False) -> NDArray[np.float32]:
    """Return the sum of rewards from each step of a dataset on."""
    found = np.empty(data.steps, np.float32)
    for first, length, total in zip(data.starts, data.lengths, data.returns, strict=True):
        steps = slice(first, first + length)
        rewards = data.rewards[steps].astype(np.float64)
        found[steps] = total if delayed else rewards[::-1].cumsum()[::-1]
    return found


def best_episodes(data: Dataset, percentile: float) -> NDArray[np.int64]:
    """Return the episodes of highest return with at most this share of all steps, at least one."""
    if not 0.0 < percentile <= 100.0:
        raise UsageError(f"train.percentile: given {percentile}; allowed: above 0, to 100.")
    order = np.argsort(data.returns, kind="stable")
    if percentile == 100.0:
        return order
    taken = np.cumsum(data.lengths[order][::-1])
    count = int(np.searchsorted(taken, percentile / 100.0 * data.steps, side="right"))
    return order[len(order) - max(count, 1) :]


# ---------------------------------------------------------------------- loss


@dataclass(frozen=True)
class DecisionBatch:
    """Sequences as tensors, `[batch, window, ...]`."""

    observations: Tensor
    samples: Tensor
    returns: Tensor
    times: Tensor
    mask: Tensor


def to_batch(
    policy: DecisionTransformer, sequences: DecisionSequences, device: torch.device
) -> DecisionBatch:
    """Return sequences on the policy's device, with actions as samples of the distribution."""
    actions = sequences.actions
    samples = policy.distribution.to_samples(actions.reshape(-1, actions.shape[-1]))
    samples = samples.reshape(*actions.shape[:2], -1)
    arrays = (sequences.observations, samples, sequences.returns, sequences.times, sequences.mask)
    return DecisionBatch(*(torch.from_numpy(array).to(device) for array in arrays))


def decision_loss(
    policy: DecisionTransformer, batch: DecisionBatch, cfg: DecisionTransformerConfig
) -> tuple[Tensor, Sums]:
    """Return the mean loss of all steps that are no padding, and metrics."""
    params = policy.forward_sequences(
        batch.observations, batch.samples, batch.returns, batch.times, batch.mask
    )
    params, samples = params[batch.mask].float(), batch.samples[batch.mask]  # [steps, ...]
    loss, metrics = params.new_zeros(()), Sums()
    distribution = policy.distribution
    if distribution.num_heads:
        logits = params[:, : distribution.num_choices]
        chosen = samples[:, : distribution.num_heads].long()
        heads = torch.split(logits, distribution.choices, dim=-1)
        pairs = list(zip(heads, chosen.T, strict=True))
        choices = torch.stack([functional.cross_entropy(head, index) for head, index in pairs])
        right = [head.argmax(-1) == index for head, index in pairs]
        loss = loss + choices.sum()
        metrics["cross_entropy"] = choices.sum().detach()
        metrics["accuracy"] = torch.stack(right).float().mean()
    if distribution.num_continuous:
        numbers, metrics["squared_error"] = number_loss(policy, params, samples, cfg.loss)
        loss = loss + numbers
    return loss, metrics | {"loss": loss.detach()}


def number_loss(
    policy: DecisionTransformer, params: Tensor, samples: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Return the loss of the actions' numbers, and their mean squared error.

    Squashed numbers are compared after the squashing, in units of half their range.
    """
    distribution = policy.distribution
    means = params[:, distribution.num_choices : distribution.num_outputs]
    log_stds = params[:, distribution.num_outputs :]
    raw = samples[:, distribution.num_heads :]
    squashed = distribution.squashed.bool()
    predicted, true = (torch.where(squashed, x.tanh(), x) for x in (means, raw))
    error = (predicted - true).square().mean()
    # With a squared error only the deviation is fitted by likelihood: samples spread as much as
    # the prediction errs.
    center = means if kind == "normal" else means.detach()
    deviations = (raw - center) * torch.exp(-log_stds)
    likelihood = (0.5 * deviations.square() + log_stds).sum(-1).mean()
    loss = likelihood if kind == "normal" else error + likelihood - likelihood.detach()
    return loss, error.detach()


# ---------------------------------------------------------------------- update


class DecisionLearner:
    """Improves one policy from batches of sequences; dropout is off except while it learns."""

    def __init__(
        self,
        policy: DecisionTransformer,
        optimizer: torch.optim.Optimizer,
        cfg: DecisionTransformerConfig,
    ) -> None:
        self.policy, self.optimizer, self.cfg = policy.eval(), optimizer, cfg
        self._parameters = [p for p in policy.parameters() if p.requires_grad]

    def update(self, drawn: list[DecisionSequences], device: torch.device) -> dict[str, float]:
        """Take one step of the optimizer for each batch, and return means of their metrics."""
        sums: dict[str, list[Tensor]] = {}
        self.policy.train()
        try:
            for sequences in drawn:
                for name, value in self._step(to_batch(self.policy, sequences, device)).items():
                    sums.setdefault(name, []).append(value)
        finally:
            self.policy.eval()
        return {name: float(torch.stack(found).mean()) for name, found in sums.items()}

    def _step(self, batch: DecisionBatch) -> Sums:
        self.optimizer.zero_grad(set_to_none=True)
        loss, metrics = decision_loss(self.policy, batch, self.cfg)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self.cfg.max_gradient_norm)
        self.optimizer.step()
        return metrics | {"gradient_norm": norm.detach()}


# ---------------------------------------------------------------------- algorithm


@dataclass(frozen=True)
class OneCopy(VecConfig):
    """How environments are stepped: one copy has the layouts, since data is learned from."""

    num_envs: int = 1


class OfflineDecisionTransformer(Algorithm):
    """Learns from a dataset; environments only have the layouts, and evaluate.

    `steps` are those of sequences that were learned from, without padding.
    """

    Config = DecisionTransformerConfig
    changeable = ("learning_rate", "final_learning_rate")
    VecConfig, PolicyConfig = OneCopy, DecisionTransformerPolicyConfig
    ignored_hints = ("train", "policy")
    unused: ClassVar[Mapping[str, Unused]] = {
        "train.cpu_offload": Unused(
            (False,), "Its data stays in files, and batches alone go to the device."
        ),
        "policy.critic": NO_CRITIC,
        "policy.recall": Unused((0,), "It learns from recorded episodes and has no memory."),
        "policy.engine": Unused(("auto", "torch"), "The native learner cannot run it."),
    }

    def __init__(self, context: RunContext) -> None:
        cfg, vec = context.config, context.vector
        self.context, self.cfg, self._device = context, cfg, context.device
        self.episodes, self.collector = EpisodeStatistics(), None
        self._train: DecisionTransformerConfig = cfg.train
        self._policy_cfg: DecisionTransformerPolicyConfig = cfg.policy
        if self._train.data == Path():
            raise UsageError(
                "train.data: given nothing; allowed: a folder of recorded episodes, as `fugu "
                f"record {cfg.env} --data FOLDER` writes it."
            )
        self._random = np.random.default_rng(derive(cfg.seed, DRAWING_STREAM))
        torch.manual_seed(derive(cfg.seed, WEIGHT_STREAM) >> 1)
        self._steps, self._updates = 0, 0
        self._samplers: list[SequenceSampler] = []
        self._learners: list[DecisionLearner] = []
        self._drawn: list[list[DecisionSequences]] = []
        self._names = [group.name for group in vec.groups]
        folders = group_folders(self._train.data, vec.groups)
        for group, folder in zip(vec.groups, folders, strict=True):
            self._add_group(group, folder)
        self.policies = [learner.policy for learner in self._learners]

    @classmethod
    def policy_factory(cls, config: Any, factory: PolicyFactory) -> PolicyFactory:
        """Return the factory of its transformers, whatever the user's factory is."""
        return make_decision_transformer

    def _add_group(self, group: AgentGroup, folder: Path) -> None:
        cfg, data = self._train, Dataset(folder)
        data.check(group)
        percentile = 100.0 if cfg.percentile is None else cfg.percentile
        sampler = SequenceSampler(
            data, self._policy_cfg.window, percentile=percentile, delayed=self._policy_cfg.delayed
        )
        policy_cfg = self._policy_cfg
        if policy_cfg.precision == "auto":
            policy_cfg = replace(policy_cfg, precision="float32")
        policy = make_decision_transformer(group, policy_cfg).to(self._device)
        assert isinstance(policy, DecisionTransformer)
        largest = float(np.abs(sampler.returns_to_go).max())
        policy.core.scale.fill_(cfg.return_scale or largest or 1.0)
        policy.core.conditioned.fill_(float(cfg.percentile is None))
        if self.cfg.train.compile:
            compiled = torch.compile(policy.forward_sequences)
            policy.forward_sequences = compiled  # type: ignore[method-assign]
        optimizer = make_optimizer(policy, cfg.optimizer_config())
        self._samplers.append(sampler)
        self._learners.append(DecisionLearner(policy, optimizer, cfg))

    @property
    def steps(self) -> int:
        """Return the steps of sequences that were learned from."""
        return self._steps

    def start(self, seed: int) -> None:
        """Read all observations, to normalize them, and set the target return."""
        for learner, sampler in zip(self._learners, self._samplers, strict=True):
            policy, data = learner.policy, sampler.data
            highest = float(data.returns.max())
            policy.ask(highest if self._train.target is None else self._train.target)
            if any(bool(scale.count) for scale in policy.scales):
                continue  # the weights of another run expect its scales
            for first in range(0, len(data.observations), OBSERVATIONS_AT_ONCE):
                rows = np.array(data.observations[first : first + OBSERVATIONS_AT_ONCE])
                policy.note(torch.from_numpy(rows).to(self._device))

    def collect(self) -> None:
        """Draw the batches of an update, and add up their steps."""
        cfg = self._train
        self._drawn = [
            [sampler.draw(cfg.batch_size, self._random) for _ in range(cfg.batches)]
            for sampler in self._samplers
        ]
        self._steps += sum(int(s.mask.sum()) for drawn in self._drawn for s in drawn)

    def update(self, progress: float) -> Metrics:
        """Learn from them, and return metrics."""
        losses: Metrics = {}
        rate = self.context.learning_rate(progress)
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            # Dropout depends on the seed and the number of the update alone.
            torch.manual_seed(derive(self.cfg.seed, DROPOUT_STREAM, self._updates) >> 1)
            for learner, drawn, name in zip(self._learners, self._drawn, self._names, strict=True):
                set_learning_rate(learner.optimizer, rate)
                found = learner.update(drawn, self._device)
                prefix = "" if len(self._learners) == 1 else f"{name}/"
                losses |= {f"{prefix}{key}": value for key, value in found.items()}
        self._updates, self._drawn = self._updates + 1, []
        return losses

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs, but the data."""
        tensors: Tensors = {}
        optimizers = []
        for i, learner in enumerate(self._learners):
            optimizers.append(save_network(tensors, i, learner.policy, learner.optimizer))
        return tensors, {
            "optimisers": optimizers,
            "random": save_rng([self._random]),
            "data": [sampler.data.metadata["checksum"] for sampler in self._samplers],
        }

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        for i, (learner, sampler) in enumerate(zip(self._learners, self._samplers, strict=True)):
            if sampler.data.metadata["checksum"] != state["data"][i]:
                raise UsageError(
                    f"train.data: given {str(sampler.data.folder)!r}, whose episodes are not those "
                    "that the run began with; allowed: the same ones. Begin a new run with "
                    "--init-from."
                )
            rest = state["optimisers"][i]
            load_network(tensors, i, learner.policy, learner.optimizer, rest)
        load_rng([self._random], state["random"])
        self._steps, self._updates = int(state["steps"]), int(state["updates"])
