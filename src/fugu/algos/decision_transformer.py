"""Decision Transformer: learns from recorded episodes what was done on the way to which return.

Every sequence of a batch is a stretch of an episode: returns to go, observations, actions. The
policy predicts each action from what comes before it; the loss is the negative log-likelihood of
choices and the squared error (or the negative log-likelihood) of numbers. Asked for a high return
it then does what was done in episodes that had one. With a percentile it is behaviour cloning on
the best episodes: the same network and loss, but it is not told any return.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
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
from fugu.data.sequences import Sequences, SequenceSampler
from fugu.envs.contract import AgentGroup
from fugu.policies.decision_transformer import (
    DecisionTransformer,
    DecisionTransformerPolicyConfig,
    make_decision_transformer,
)
from fugu.rollout.collector import EpisodeStatistics

Sums = dict[str, Tensor]
DRAWING_STREAM, DROPOUT_STREAM = 2, 4  # branches of the seed tree
NOTED_AT_ONCE = 65_536  # observations


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


@dataclass(frozen=True)
class DecisionBatch:
    """Sequences as tensors, `[batch, window, ...]`."""

    observations: Tensor
    samples: Tensor
    returns: Tensor
    times: Tensor
    mask: Tensor


def to_batch(
    policy: DecisionTransformer, sequences: Sequences, device: torch.device
) -> DecisionBatch:
    """Sequences on the policy's device, actions as the samples that give them."""
    actions = sequences.actions
    samples = policy.distribution.to_samples(actions.reshape(-1, actions.shape[-1]))
    samples = samples.reshape(*actions.shape[:2], -1)
    arrays = (sequences.observations, samples, sequences.returns, sequences.times, sequences.mask)
    return DecisionBatch(*(torch.from_numpy(array).to(device) for array in arrays))


def decision_loss(
    policy: DecisionTransformer, batch: DecisionBatch, cfg: DecisionTransformerConfig
) -> tuple[Tensor, Sums]:
    """The mean loss of all steps that are there, and what there is to say of it."""
    params = policy.forward_sequences(
        batch.observations, batch.samples, batch.returns, batch.times, batch.mask
    )
    params, samples = params[batch.mask].float(), batch.samples[batch.mask]  # [steps, ...]
    loss, metrics = params.new_zeros(()), Sums()
    distribution = policy.distribution
    logits = params[:, : distribution.num_choices]
    chosen = samples[:, : distribution.num_heads].long()
    if distribution.num_heads:
        heads = torch.split(logits, distribution.choices, dim=-1)
        pairs = list(zip(heads, chosen.T, strict=True))
        choices = torch.stack([functional.cross_entropy(head, index) for head, index in pairs])
        right = [head.argmax(-1) == index for head, index in pairs]
        loss = loss + choices.sum()
        metrics["cross_entropy"] = choices.sum().detach()
        metrics["accuracy"] = torch.stack(right).float().mean()
    if distribution.num_continuous:
        numbers, error = number_loss(policy, params, samples, cfg.loss)
        loss = loss + numbers
        metrics["squared_error"] = error
    return loss, metrics | {"loss": loss.detach()}


def number_loss(
    policy: DecisionTransformer, params: Tensor, samples: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """The loss of the actions' numbers, and their mean squared error.

    Squashed numbers are compared after the squashing, in units of half their range.
    """
    distribution = policy.distribution
    means = params[:, distribution.num_choices : distribution.num_outputs]
    log_stds = params[:, distribution.num_outputs :]
    raw = samples[:, distribution.num_heads :]
    squashed = distribution.squashed.bool()
    said, meant = (torch.where(squashed, x.tanh(), x) for x in (means, raw))
    error = (said - meant).square().mean()
    # With a squared error the deviation alone is fitted by likelihood: what is drawn spreads as
    # much as the prediction errs.
    centre = means if kind == "normal" else means.detach()
    deviations = (raw - centre) * torch.exp(-log_stds)
    likelihood = (0.5 * deviations.square() + log_stds).sum(-1).mean()
    loss = likelihood if kind == "normal" else error + likelihood - likelihood.detach()
    return loss, error.detach()


class DecisionLearner:
    """Improves one policy from batches of sequences.

    Args:
        policy: To be improved; it leaves nothing out but while it learns.
        optimiser: Of its parameters.
        cfg: The settings.
    """

    def __init__(
        self,
        policy: DecisionTransformer,
        optimiser: torch.optim.Optimizer,
        cfg: DecisionTransformerConfig,
    ) -> None:
        self.policy, self.optimiser, self.cfg = policy.eval(), optimiser, cfg
        self._parameters = [p for p in policy.parameters() if p.requires_grad]

    def update(self, drawn: list[Sequences], device: torch.device) -> dict[str, float]:
        """One step of the optimiser for each batch; means of what there is to say."""
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
        self.optimiser.zero_grad(set_to_none=True)
        loss, metrics = decision_loss(self.policy, batch, self.cfg)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self.cfg.max_gradient_norm)
        self.optimiser.step()
        return metrics | {"gradient_norm": norm.detach()}


# ---------------------------------------------------------------------- algorithm


@dataclass(frozen=True)
class OneCopy(VecConfig):
    """How environments are stepped: one copy shows the layouts, since data is learned from."""

    num_envs: int = 1


class OfflineDecisionTransformer(Algorithm):
    """Learns from a dataset; environments only show their layouts, and evaluate.

    Its steps are those of sequences that were learned from, padding left out.

    Args:
        context: What the run hands in.
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
        self._drawn: list[list[Sequences]] = []
        self._names = [group.name for group in vec.groups]
        folders = group_folders(self._train.data, vec.groups)
        for group, folder in zip(vec.groups, folders, strict=True):
            self._add_group(group, folder)
        self.policies = [learner.policy for learner in self._learners]

    @classmethod
    def policy_factory(cls, config: Any, factory: PolicyFactory) -> PolicyFactory:
        """Return what makes its transformers, whatever the user's factory."""
        return make_decision_transformer

    def _add_group(self, group: AgentGroup, folder: Path) -> None:
        cfg, data = self._train, Dataset(folder)
        data.check(group)
        percentile = 100.0 if cfg.percentile is None else cfg.percentile
        sampler = SequenceSampler(
            data,
            self._policy_cfg.window,
            percentile=percentile,
            delayed=self._policy_cfg.delayed,
        )
        precision = self._policy_cfg.precision
        policy_cfg = replace(
            self._policy_cfg, precision="float32" if precision == "auto" else precision
        )
        policy = make_decision_transformer(group, policy_cfg).to(self._device)
        assert isinstance(policy, DecisionTransformer)
        largest = float(np.abs(sampler.returns_to_go).max())
        policy.core.scale.fill_(cfg.return_scale or largest or 1.0)
        policy.core.conditioned.fill_(float(cfg.percentile is None))
        if self.cfg.train.compile:
            compiled = torch.compile(policy.forward_sequences)
            policy.forward_sequences = compiled  # type: ignore[method-assign]
        optimiser = make_optimizer(policy, cfg.optimizer_config())
        self._samplers.append(sampler)
        self._learners.append(DecisionLearner(policy, optimiser, cfg))

    @property
    def steps(self) -> int:
        """Steps of sequences that were learned from."""
        return self._steps

    def start(self, seed: int) -> None:
        """Look at all observations, to normalize them, and at all returns."""
        for learner, sampler in zip(self._learners, self._samplers, strict=True):
            policy, data = learner.policy, sampler.data
            highest = float(data.returns.max())
            policy.ask(highest if self._train.target is None else self._train.target)
            if any(bool(scale.count) for scale in policy.scales):
                continue  # it began with another run's policy, whose weights expect its scales
            for first in range(0, len(data.observations), NOTED_AT_ONCE):
                rows = np.array(data.observations[first : first + NOTED_AT_ONCE])
                policy.note(torch.from_numpy(rows).to(self._device))

    def collect(self) -> None:
        """Draw the batches of an update, and count their steps."""
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
            # What dropout leaves out follows from the seed and the update alone.
            torch.manual_seed(derive(self.cfg.seed, DROPOUT_STREAM, self._updates) >> 1)
            for learner, drawn, name in zip(self._learners, self._drawn, self._names, strict=True):
                set_learning_rate(learner.optimiser, rate)
                found = learner.update(drawn, self._device)
                prefix = "" if len(self._learners) == 1 else f"{name}/"
                losses |= {f"{prefix}{key}": value for key, value in found.items()}
        self._updates, self._drawn = self._updates + 1, []
        return losses

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs, but the data."""
        tensors: Tensors = {}
        optimisers = []
        for i, learner in enumerate(self._learners):
            optimisers.append(save_network(tensors, i, learner.policy, learner.optimiser))
        return tensors, {
            "optimisers": optimisers,
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
            load_network(tensors, i, learner.policy, learner.optimiser, rest)
        load_rng([self._random], state["random"])
        self._steps, self._updates = int(state["steps"]), int(state["updates"])
