"""Algorithms: what one has, what a training run hands to it, and what all of them share.

An algorithm is one class in one file: its settings, its loss, how it collects experience and how
it learns. The trainer calls `start` once, then `collect` and `update` in turns; checkpoints are
made of `state_dict`. Everything it needs comes in the `RunContext`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import torch
from torch import nn

from fugu.algos import settings
from fugu.algos.optimizers import learning_rate_at
from fugu.core.errors import UsageError
from fugu.core.machine import has_bfloat16
from fugu.core.ranks import SINGLE_PROCESS, Ranks
from fugu.core.seeding import derive
from fugu.policies.config import PolicyConfig, Precision
from fugu.policies.policy import Policy, make_policy
from fugu.rollout.actor import Acts
from fugu.rollout.collector import Collector, EpisodeStatistics
from fugu.store.run import Run
from fugu.vector import Vector

Metrics: TypeAlias = dict[str, float]
Tensors: TypeAlias = dict[str, dict[str, Any]]
State: TypeAlias = dict[str, Any]
PolicyFactory: TypeAlias = Callable[..., Policy]

# Branches of the seed tree; 0 is that of the environments.
SAMPLING_STREAM, ROW_STREAM, WEIGHT_STREAM = 1, 2, 3
LARGE_BATCH, LARGE_LAYER = 1024, 128  # below, converting to bfloat16 costs what its products save


@dataclass
class RunContext:
    """What a training run hands to its algorithm.

    Attributes:
        config: All settings; `config.train` has the type that the algorithm's `Config` names. With
            several processes, counts are this process's share.
        vector: The environments; with several processes, this one's.
        device: Where policies live.
        policy_factory: Makes the policy of a group of agents, called with the group and the
            policy's settings (and the number of critics where there are several).
        ranks: The processes that train together.
        loss: The loss function that the caller gave in place of the algorithm's; None: none.
        opponents: Makes the opponents of a run in a league, from this and the algorithm; None: no
            league.
        run: The run's folder, set before `start` or `load_state_dict`; None if nothing is kept.
        steps: Agent steps so far, of all processes; the trainer counts them after each `collect`.
    """

    config: settings.Config
    vector: Vector
    device: torch.device
    policy_factory: PolicyFactory = make_policy
    ranks: Ranks = SINGLE_PROCESS
    loss: Callable[..., Any] | None = None
    opponents: Callable[[RunContext, Any], Opponents] | None = None
    run: Run | None = None
    steps: int = 0

    def learning_rate(self, progress: float) -> float:
        """Return the learning rate of the update under way, as the settings schedule it."""
        train = self.config.train
        return learning_rate_at(progress, train.optimizer_config(), self.steps / train.total_steps)

    def reset_seeds(self, seed: int) -> int | list[int]:
        """Return the seeds of this process's copies: those that they have in a single process."""
        if self.ranks.size == 1:
            return seed
        size, copies = self.config.vec.group_size, self.vector.num_envs
        first = self.ranks.rank * copies
        return [derive(seed, (first + env) // size) for env in range(copies)]


class Opponents(Protocol):
    """Opponents of a league, which hold some of the agents while an algorithm learns."""

    def make_collector(self, vector: Vector, actors: Sequence[Acts]) -> Collector:
        """Return a collector in which opponents act for the agents that they hold."""

    def start(self) -> None:
        """Fill the pool of opponents, before environments are reset."""

    def after_update(self) -> None:
        """Add a snapshot if one is due, and choose who plays next."""

    def state_dict(self, tensors: Tensors) -> State:
        """Add tensors to a checkpoint; return the rest of the state."""

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""


class Algorithm(Protocol):
    """Everything that one training run does between the vector and the checkpoint.

    Derive from it to inherit the defaults below; only the methods without a body are required.
    Installed algorithms are found by entry points of the group `fugu.algorithms`, others as
    `--algo package.module:Name`.

    Attributes:
        policies: One for each group of agents.
        episodes: Statistics of the episodes that ended.
        collector: What steps the environments; None for algorithms that learn from files.
    """

    Config: ClassVar[type[settings.LearningConfig]] = settings.LearningConfig
    """Settings of the section `train`: a frozen dataclass whose fields are flags `--train.*`."""
    PolicyConfig: ClassVar[type[Any]] = PolicyConfig
    """Settings of the section `policy`."""
    VecConfig: ClassVar[type[settings.VecConfig]] = settings.VecConfig
    """Settings of the section `vec`."""
    unused: ClassVar[Mapping[str, settings.Unused]] = {}
    """Settings that it inherits and cannot use, by their dotted names: other values are refused."""
    ignored_hints: ClassVar[tuple[str, ...]] = ()
    """Sections for which an environment's own suggestions do not hold."""
    supports_ranks: ClassVar[bool] = False
    """Whether several processes can learn together."""
    supports_loss: ClassVar[bool] = False
    """Whether it takes a loss function in place of its own."""
    supports_leagues: ClassVar[bool] = False
    """Whether it can learn while opponents hold some of the agents."""

    changeable: ClassVar[tuple[str, ...]] = ()
    """Settings of `train` that callbacks may change while a run goes on; see `change`."""

    policies: Sequence[Policy]
    episodes: EpisodeStatistics
    collector: Collector | None

    def __init__(self, context: RunContext) -> None:
        """Make policies and buffers; environments are not reset yet."""

    @property
    def steps(self) -> int:
        """Agent steps so far, of this process."""
        return 0 if self.collector is None else self.collector.steps

    def start(self, seed: int) -> None:
        """Begin a run: reset all environments with this seed."""
        raise NotImplementedError("start(self, seed: int) -> None")

    def collect(self) -> None:
        """Gather the experience of one update."""
        raise NotImplementedError("collect(self) -> None")

    def update(self, progress: float) -> Metrics:
        """Learn from it, and return metrics.

        Args:
            progress: Share of the run that was done before this update's experience, 0 to 1.
        """
        raise NotImplementedError("update(self, progress: float) -> Metrics")

    def change(self, train: Any) -> None:
        """Take new settings, some of `changeable`, from the next update on.

        `RunContext.learning_rate` follows them already.
        """

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs: tensors by name, and the rest as JSON has it."""
        raise NotImplementedError("state_dict(self) -> tuple[Tensors, State]")

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`.

        `state` has two more entries: `steps`, of this process, and `reset_seed` for environments
        without a state, which begin new episodes.
        """
        raise NotImplementedError("load_state_dict(self, tensors, state) -> None")

    @classmethod
    def policy_factory(cls, config: settings.Config, factory: PolicyFactory) -> PolicyFactory:
        """Return what makes the policies of a run to play with them, from the user's factory."""
        made: PolicyFactory = config.train.player(factory)
        return made

    def facts(self) -> State:
        """Return facts of the run to be kept with it, such as what computes its gradients."""
        return {}

    def notices(self) -> list[str]:
        """Return what the user should know when a run starts, one sentence each."""
        return []


# ---------------------------------------------------------------------- policies


def choose_precision(cfg: PolicyConfig, agents: int, device: torch.device) -> Precision:
    """Return what precision "auto" means: bfloat16 where batches and layers are large enough.

    Convolutions always are.

    >>> choose_precision(PolicyConfig(precision="bfloat16"), 1, torch.device("cpu"))
    'bfloat16'
    >>> choose_precision(PolicyConfig(), 64, torch.device("cpu"))
    'float32'
    """
    if cfg.precision != "auto":
        return cfg.precision
    large = agents >= LARGE_BATCH and cfg.hidden_size >= LARGE_LAYER
    large |= cfg.encoder in ("nature", "impala")
    return "bfloat16" if large and device.type == "cpu" and has_bfloat16() else "float32"


def compile_policy(policy: Policy) -> None:
    """Let torch compile what runs on whole batches; names of weights stay as they are.

    A recurrent core is left out: where its episodes end is known only at run time.
    """
    if policy.state_size:
        for name, module in policy.named_modules():
            if name.rpartition(".")[2] in ("encoder", "decoder"):
                module.compile()
        return
    policy.forward = torch.compile(policy.forward)  # type: ignore[method-assign]
    policy.forward_segments = torch.compile(policy.forward_segments)  # type: ignore[method-assign]


def import_object(place: str, setting: str) -> Any:
    """Import `package.module:name`.

    Args:
        place: The name.
        setting: The setting that holds it, for errors.

    >>> import_object("math:pi", "train.loss")
    3.141592653589793
    """
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{setting}: expected package.module:name of something that can be imported; got "
            f"{place!r} ({error}). A module in the working folder needs PYTHONPATH=."
        ) from error


# ---------------------------------------------------------------------- checkpoints


def save_network(
    tensors: Tensors, number: int, network: nn.Module, optimiser: torch.optim.Optimizer
) -> dict[str, Any]:
    """Add a network's weights and its optimizer's tensors; return the rest of the optimizer."""
    tensors[f"policy_{number}"] = dict(network.state_dict())
    tensors[f"optimiser_{number}"], rest = flatten_optimiser(optimiser.state_dict())
    return rest


def load_network(
    tensors: Mapping[str, Any],
    number: int,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    rest: dict[str, Any],
) -> None:
    """Load what `save_network` saved."""
    network.load_state_dict(as_tensors(tensors[f"policy_{number}"]))
    restore_optimiser(optimiser, as_tensors(tensors[f"optimiser_{number}"]), rest)


def save_rng(generators: Sequence[np.random.Generator]) -> list[Any]:
    """Return the states of generators."""
    return [generator.bit_generator.state for generator in generators]


def load_rng(generators: Sequence[np.random.Generator], kept: Sequence[Any]) -> None:
    """Restore the states of generators."""
    for generator, state in zip(generators, kept, strict=True):
        generator.bit_generator.state = state


def save_environments(tensors: Tensors, collector: Collector) -> None:
    """Wait for all environments and add their states if they have any."""
    snapshot = collector.pause()
    if snapshot is not None:
        tensors["environments"] = snapshot


def load_environments(tensors: Mapping[str, Any], collector: Collector) -> bool:
    """Resume environments from the states that `save_environments` added; False without any."""
    snapshot = tensors.get("environments")
    if snapshot is None:
        return False
    collector.resume(as_arrays(snapshot))
    return True


def as_tensors(kept: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a checkpoint's entries as tensors."""
    return {name: as_tensor(value) for name, value in kept.items()}


def as_arrays(kept: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return a checkpoint's entries as arrays."""
    return {name: as_array(value) for name, value in kept.items()}


def as_tensor(value: Any) -> torch.Tensor:
    """Return a checkpoint's entry as a tensor."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a checkpoint's entry as an array."""
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def flatten_optimiser(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of an optimizer's state by `parameter.name`, and everything else."""
    flat, numbers = {}, {}
    for parameter, entries in state["state"].items():
        for name, value in entries.items():
            key = f"{parameter}.{name}"
            if isinstance(value, torch.Tensor):
                flat[key] = value
            else:
                numbers[key] = value
    return flat, {"numbers": numbers, "param_groups": state["param_groups"]}


def restore_optimiser(
    optimiser: torch.optim.Optimizer, flat: dict[str, Any], rest: dict[str, Any]
) -> None:
    """Load what `flatten_optimiser` returned; raise ValueError if it is of other weights.

    Settings such as betas and weight decay stay as they are: a run may resume with others.
    """
    given = unflatten_optimiser(flat, rest)
    for own, told in zip(
        optimiser.state_dict()["param_groups"], given["param_groups"], strict=True
    ):
        wrong = [name for name, value in own.items() if not _alike(value, told[name])]
        if wrong or own["params"] != told["params"]:
            name = wrong[0] if wrong else "params"
            raise ValueError(f"the optimiser's {name} is {told[name]!r:.80}")
    groups = optimiser.param_groups
    weights = [weight for group in groups for weight in group["params"]]
    for number, entries in given["state"].items():
        if not 0 <= number < len(weights):
            raise ValueError(f"the optimiser has no weight {number}")
        for name, value in entries.items():
            shape = () if name == "step" else weights[number].shape
            if not isinstance(value, torch.Tensor) or value.shape != shape:
                raise ValueError(f"the optimiser's {name} is not of a weight's shape")
        if entries.keys() not in _KEPT:
            raise ValueError(f"the optimiser keeps {', '.join(entries)}")
    names = optimiser.defaults.keys() - {"lr", "step"}  # which change while a run goes on
    settings = [{name: group[name] for name in names} for group in groups]
    optimiser.load_state_dict(given)
    for group, own in zip(optimiser.param_groups, settings, strict=True):
        group.update(own)


# What optimisers keep of a weight: AdamW, LaProp, Muon.
_KEPT = ({"step", "exp_avg", "exp_avg_sq"}, {"square", "mean"}, {"momentum_buffer"})


def _alike(own: Any, given: Any) -> bool:
    """Return whether a setting of one optimizer fits another."""
    if isinstance(own, list | tuple):
        same = isinstance(given, list | tuple) and len(own) == len(given)
        return same and all(map(_alike, own, given))
    if isinstance(own, float):
        return isinstance(given, float | int) and not isinstance(given, bool)
    return type(own) is type(given)


def unflatten_optimiser(flat: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Undo `flatten_optimiser`."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**flat, **rest["numbers"]}.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = value
    return {"state": state, "param_groups": rest["param_groups"]}
