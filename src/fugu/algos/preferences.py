"""Preferences: a Bradley-Terry reward model from comparisons, and how far to trust it.

The model gives every step a reward. The probability that the first of two pieces of episodes is
preferred is `sigmoid(sum of the first's rewards - sum of the second's)`, and the model is fitted to
known preferences: from a file, one a line, or of a scripted teacher who sees the true rewards. A
report on comparisons that were held out says how well calibrated its probabilities are.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.core.config import from_tree
from fugu.core.errors import UsageError
from fugu.core.files import parse_json, read_lines
from fugu.core.intervals import CheckedConfig, Interval, NonNegativeFloat, PositiveInt
from fugu.core.seeding import derive
from fugu.data.episodes import Episode
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.distribution import ActionDistribution
from fugu.policies.encoders import make_encoder
from fugu.store.checkpoint import load_checkpoint, save_checkpoint
from fugu.track.curves import check_picture

Floats = NDArray[np.float32]
WEIGHTS, BATCHES, HOLDOUT = range(3)  # branches of the seed tree


@dataclass(frozen=True)
class PreferenceConfig(CheckedConfig):
    """Settings of a reward model and of its training."""

    hidden_size: PositiveInt = 64
    """Width of its layers."""
    layers: PositiveInt = 2
    """Hidden layers."""
    members: PositiveInt = 1
    """Models that are trained on resamples of the comparisons; rewards are their mean."""
    epochs: PositiveInt = 30
    """How often training goes through the comparisons."""
    batch_size: PositiveInt = 32
    """Comparisons of a step of the optimiser."""
    learning_rate: NonNegativeFloat = 0.001
    """Of Adam."""
    weight_decay: NonNegativeFloat = 0.0001
    """How much weights shrink."""
    holdout: Annotated[float, Interval(0.0, 1.0, above=True, below=True)] = 0.2
    """Share of the comparisons that the report is made with."""
    bins: PositiveInt = 10
    """Of the calibration."""
    seed: int = 0
    """Root of all chance."""


# ---------------------------------------------------------------------- comparisons


@dataclass(frozen=True)
class Piece:
    """Steps of an episode, as they are compared."""

    observations: NDArray[Any]  # flat rows [steps, size], in the layout's dtype
    samples: Floats  # of the action distribution, [steps, numbers]


@dataclass(frozen=True)
class Comparison:
    """Two pieces, and the probability that the first is preferred: 1, 0 or between."""

    first: Piece
    second: Piece
    preference: float


def compare(
    episodes: Sequence[Episode],
    count: int,
    random: np.random.Generator,
    *,
    length: int | None = None,
    mistakes: float = 0.0,
    temperature: float = 0.0,
) -> list[Comparison]:
    """Compare random pairs as a scripted teacher who sees the rewards.

    Args:
        episodes: Are drawn from.
        count: Number of comparisons.
        random: Draws the pairs and the mistakes.
        length: Most steps of a piece; whole episodes if not given.
        mistakes: Probability that a preference is reversed.
        temperature: The teacher prefers the first with probability `sigmoid(difference of returns
            / temperature)`; 0: always the larger return, and 1/2 if they are equal.
    """
    if len(episodes) < 2:
        raise UsageError(f"compare: given {len(episodes)} episodes; allowed: 2 or more.")
    found = []
    for _ in range(count):
        first, second = random.choice(len(episodes), 2, replace=False)
        pieces, returns = [], []
        for episode in (episodes[first], episodes[second]):
            steps = episode.length if length is None else min(length, episode.length)
            begin = int(random.integers(episode.length - steps + 1))
            window = slice(begin, begin + steps)
            pieces.append(Piece(episode.observations[window], episode.samples[window]))
            returns.append(float(episode.rewards[window].sum(dtype=np.float64)))
        preference = _prefer(returns[0] - returns[1], temperature, random)
        if random.random() < mistakes:
            preference = 1.0 - preference
        found.append(Comparison(pieces[0], pieces[1], preference))
    return found


def _prefer(difference: float, temperature: float, random: np.random.Generator) -> float:
    if temperature > 0:
        probability = 0.5 * (1.0 + np.tanh(0.5 * difference / temperature))  # the sigmoid
        return float(random.random() < probability)
    return 0.5 if difference == 0 else float(difference > 0)


def write_comparisons(path: str | Path, comparisons: Iterable[Comparison]) -> None:
    """Write one JSON object a line: `first`, `second` and `preference`.

    Each of the two has `observations` (flat rows) and `actions` (samples), one a step.
    """
    with Path(path).open("w") as file:
        for each in comparisons:
            pieces = {
                name: {"observations": p.observations.tolist(), "actions": p.samples.tolist()}
                for name, p in (("first", each.first), ("second", each.second))
            }
            file.write(json.dumps({**pieces, "preference": each.preference}) + "\n")


def read_comparisons(path: str | Path, group: AgentGroup) -> list[Comparison]:
    """Read what `write_comparisons` wrote, of agents with these spaces."""
    size = group.observation_layout.size, ActionDistribution(group.action_layout).num_samples
    found = []
    for number, line in enumerate(_lines(path), 1):
        try:
            entry = parse_json(line)
            pieces = [_piece(entry[name], group, size) for name in ("first", "second")]
            preference = float(entry["preference"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise UsageError(
                f"{path}, line {number}: given something else ({error}); allowed: first and "
                f"second, each with observations of {size[0]} and actions of {size[1]} numbers a "
                "step, and preference."
            ) from error
        if not 0.0 <= preference <= 1.0:
            raise UsageError(
                f"{path}, line {number}: given a preference of {preference}; allowed: 0 to 1."
            )
        found.append(Comparison(pieces[0], pieces[1], preference))
    return found


def _lines(path: str | Path) -> Iterator[bytes]:
    try:
        yield from read_lines(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}.") from None


def _piece(entry: Any, group: AgentGroup, size: tuple[int, int]) -> Piece:
    seen = np.array(entry["observations"], group.observation_layout.dtype)
    done = np.array(entry["actions"], np.float32)
    steps = len(seen)
    if not steps or seen.shape != (steps, size[0]) or done.shape != (steps, size[1]):
        raise ValueError(f"observations {seen.shape} and actions {done.shape}")
    return Piece(seen, done)


# ---------------------------------------------------------------------- the model


class RewardModel(nn.Module):
    """Predicts the reward of a step from its observation and action.

    Rewards of each member are centered and scaled by their statistics over the comparisons, since
    preferences only tell how steps compare; then the mean of the members is taken. With `centres`
    false they are not centered, as whole episodes of different lengths need.
    """

    mean: Tensor  # [members]
    scale: Tensor

    def __init__(self, group: AgentGroup, cfg: PreferenceConfig, *, centres: bool = False) -> None:
        super().__init__()
        self.group, self.cfg, self.centres = group, cfg, centres
        self.distribution = ActionDistribution(group.action_layout)
        shape = PolicyConfig(
            encoder="auto", hidden_size=cfg.hidden_size, layers=1, activation="gelu"
        )
        self.encoders = nn.ModuleList(
            make_encoder(group.observation_layout, shape) for _ in range(cfg.members)
        )
        inputs = cfg.hidden_size + self.distribution.num_choices + self.distribution.num_continuous
        self.heads = nn.ModuleList(_head(inputs, cfg) for _ in range(cfg.members))
        self.register_buffer("mean", torch.zeros(cfg.members))
        self.register_buffer("scale", torch.ones(cfg.members))

    def forward(self, observations: Tensor, samples: Tensor) -> Tensor:
        """Return rewards `[members, steps]` of flat rows and samples `[steps, ...]`."""
        done = self._actions(samples)
        outputs = [
            head(torch.cat([encoder(observations), done], -1)).squeeze(-1)
            for encoder, head in zip(self.encoders, self.heads, strict=True)
        ]
        return torch.stack(outputs)

    @torch.no_grad()
    def rewards(self, piece: Piece | Episode) -> Floats:
        """Return the reward of each step."""
        device = self.mean.device
        seen, done = (torch.from_numpy(a).to(device) for a in (piece.observations, piece.samples))
        raw = self(seen, done)
        mean = self.mean[:, None] if self.centres else 0.0
        found: Floats = ((raw - mean) / self.scale[:, None]).mean(0).cpu().numpy()
        return found

    @torch.no_grad()
    def probability(self, comparison: Comparison) -> float:
        """Return the probability that the first is preferred, a mean over members."""
        sums = [
            self(torch.from_numpy(piece.observations), torch.from_numpy(piece.samples)).sum(1)
            for piece in (comparison.first, comparison.second)
        ]
        return float(torch.sigmoid(sums[0] - sums[1]).mean())

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint, for `load_reward_model` and `--train.reward-model`."""
        state = {
            "config": asdict(self.cfg),
            "centres": self.centres,
            "observation_space": str(self.group.observation_layout.space),
            "action_space": str(self.group.action_layout.space),
        }
        tensors = {"reward_model": dict(self.state_dict())}
        return save_checkpoint(Path(folder), tensors=tensors, state=state)

    def _actions(self, samples: Tensor) -> Tensor:
        """Return one-hot choices and numbers clipped to [-10, 10], `[steps, width]`."""
        choices = self.distribution.choices
        parts = [
            nn.functional.one_hot(samples[:, i].long().clamp(0, count - 1), count).float()
            for i, count in enumerate(choices)
        ]
        return torch.cat([*parts, samples[:, len(choices) :].clamp(-10.0, 10.0)], -1)


def _head(inputs: int, cfg: PreferenceConfig) -> nn.Sequential:
    modules: list[nn.Module] = []
    for _ in range(cfg.layers - 1):
        modules += [nn.Linear(inputs, cfg.hidden_size), nn.GELU()]
        inputs = cfg.hidden_size
    return nn.Sequential(*modules, nn.Linear(inputs, 1))


def load_reward_model(folder: str | Path, group: AgentGroup) -> RewardModel:
    """Load a model for agents with the same spaces as it was trained for."""
    checkpoint = load_checkpoint(Path(folder))
    state = checkpoint.state
    if "reward_model" not in checkpoint.tensors:
        raise UsageError(
            f"reward model: given {str(folder)!r}; allowed: what RewardModel.save wrote."
        )
    for name, layout in (
        ("observation_space", group.observation_layout),
        ("action_space", group.action_layout),
    ):
        if state[name] != str(layout.space):
            raise UsageError(
                f"reward model: given one whose {name} is {state[name]}; allowed: {layout.space}, "
                "that of these agents."
            )
    cfg = from_tree(PreferenceConfig, state["config"])
    model = RewardModel(group, cfg, centres=bool(state["centres"]))
    model.load_state_dict(dict(checkpoint.tensors["reward_model"]))
    return model.eval().requires_grad_(False)


# ---------------------------------------------------------------------- training


def preference_loss(differences: Tensor, preferences: Tensor) -> Tensor:
    """Return the cross entropy of the Bradley-Terry probabilities, `[...]`.

    >>> preference_loss(torch.tensor([0.0]), torch.tensor([1.0])).item()  # log 2
    0.6931471824645996
    """
    return nn.functional.binary_cross_entropy_with_logits(
        differences, preferences, reduction="none"
    )


def train_reward_model(
    group: AgentGroup, comparisons: Sequence[Comparison], cfg: PreferenceConfig | None = None
) -> tuple[RewardModel, Report]:
    """Fit a model to comparisons; return it with a report on those that were held out."""
    cfg = cfg or PreferenceConfig()
    held = max(1, round(cfg.holdout * len(comparisons)))
    if len(comparisons) - held < 1:
        raise UsageError(f"comparisons: given {len(comparisons)}; allowed: 2 or more.")
    order = np.random.default_rng(derive(cfg.seed, HOLDOUT)).permutation(len(comparisons))
    known = [comparisons[i] for i in order[held:]]
    alike = all(len(c.first.samples) == len(c.second.samples) for c in known)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(cfg.seed, WEIGHTS) >> 1)
        model = RewardModel(group, cfg, centres=alike)
    random = np.random.default_rng(derive(cfg.seed, BATCHES))
    optimizer = torch.optim.AdamW(
        model.parameters(), cfg.learning_rate, weight_decay=cfg.weight_decay
    )
    # Members are trained on bootstrap resamples: how often each has each comparison. A single
    # member has each once.
    counts = np.ones((cfg.members, len(known)), np.float32)
    if cfg.members > 1:
        for row in counts:
            row[:] = np.bincount(random.integers(len(known), size=len(known)), minlength=len(known))
    for _ in range(cfg.epochs):
        shuffled = random.permutation(len(known))
        for begin in range(0, len(known), cfg.batch_size):
            part = shuffled[begin : begin + cfg.batch_size]
            differences, preferences = _differences(model, [known[i] for i in part])
            losses = preference_loss(differences, preferences.expand_as(differences))
            optimizer.zero_grad()
            (losses * torch.from_numpy(counts[:, part])).mean(1).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    _set_scale(model, known)
    model.eval().requires_grad_(False)
    return model, report(model, [comparisons[i] for i in order[:held]], cfg.bins)


def _rewards(model: RewardModel, comparisons: list[Comparison]) -> tuple[Tensor, Tensor]:
    """Return rewards of all steps of all pieces, `[members, steps]`, and the piece of each step."""
    pieces = [p for comparison in comparisons for p in (comparison.first, comparison.second)]
    lengths = torch.tensor([len(piece.samples) for piece in pieces])
    seen = torch.from_numpy(np.concatenate([piece.observations for piece in pieces]))
    done = torch.from_numpy(np.concatenate([piece.samples for piece in pieces]))
    return model(seen, done), torch.arange(len(pieces)).repeat_interleave(lengths)


def _differences(model: RewardModel, comparisons: list[Comparison]) -> tuple[Tensor, Tensor]:
    """Return differences of sums of rewards, `[members, comparisons]`, and the preferences."""
    rewards, owners = _rewards(model, comparisons)
    sums = rewards.new_zeros(len(rewards), 2 * len(comparisons)).index_add(1, owners, rewards)
    preferences = torch.tensor([comparison.preference for comparison in comparisons])
    return sums[:, ::2] - sums[:, 1::2], preferences


@torch.no_grad()
def _set_scale(model: RewardModel, comparisons: list[Comparison]) -> None:
    """Set the mean and the deviation of each member's rewards."""
    rewards, _ = _rewards(model, comparisons)
    model.mean.copy_(rewards.mean(1))
    deviation = rewards.std(1) if model.centres else rewards.square().mean(1).sqrt()
    model.scale.copy_(deviation.clamp_min(1e-6))


# ---------------------------------------------------------------------- calibration


@dataclass(frozen=True)
class Bin:
    """Comparisons with about the same confidence: the larger one of the two probabilities."""

    confidence: float  # mean confidence
    accuracy: float  # share in which the more probable piece was preferred
    count: int  # number of comparisons


@dataclass(frozen=True)
class Report:
    """How well a model predicts comparisons that it was not trained on."""

    accuracy: float  # share in which the more probable piece was preferred; a tie counts half
    loss: float  # mean cross entropy; log 2 is chance
    calibration_error: float  # mean distance of confidence from accuracy, by bins (ECE)
    bins: tuple[Bin, ...]  # from even odds to certainty; empty ones are left out
    comparisons: int  # number of comparisons

    def plot(self, path: str | Path) -> Path:
        """Write a reliability diagram to `path`."""
        path = Path(path)
        check_picture(path)
        figures: Any = importlib.import_module("matplotlib.figure")
        # A figure of its own: no window, and nothing of the caller's matplotlib is touched.
        figure = figures.Figure(figsize=(5, 5), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0.5, 1], [0.5, 1], "--", color="grey", label="as sure as right")
        confidence = [b.confidence for b in self.bins]
        axes.plot(confidence, [b.accuracy for b in self.bins], "o-", label="model")
        for b in self.bins:
            at = {"xytext": (4, -10), "textcoords": "offset points", "fontsize": 8}
            axes.annotate(str(b.count), (b.confidence, b.accuracy), **at)
        axes.set(
            xlabel="confidence",
            ylabel="accuracy",
            xlim=(0.48, 1.02),
            ylim=(0, 1.05),
            title=f"{self.comparisons} comparisons, accuracy {self.accuracy:.3f}, "
            f"calibration error {self.calibration_error:.3f}",
        )
        axes.title.set_fontsize(10)
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=100)
        return path


def report(model: RewardModel, comparisons: Sequence[Comparison], bins: int = 10) -> Report:
    """Return the report on a model's predictions of comparisons."""
    probabilities = np.array([model.probability(comparison) for comparison in comparisons])
    return calibrate(probabilities, np.array([c.preference for c in comparisons]), bins)


def calibrate(
    probabilities: NDArray[np.float64], preferences: NDArray[np.float64], bins: int = 10
) -> Report:
    """Return the report on given probabilities that the first of two is preferred.

    >>> calibrate(np.array([0.9, 0.8, 0.4]), np.array([1.0, 0.0, 0.0])).accuracy
    0.6666666666666666
    """
    confidences = np.maximum(probabilities, 1.0 - probabilities)
    right = np.where(probabilities >= 0.5, preferences, 1.0 - preferences)
    places = np.minimum(((confidences - 0.5) * 2 * bins).astype(int), bins - 1)
    found, error = [], 0.0
    for place in range(bins):
        inside = places == place
        if inside.any():
            confidence, accuracy = confidences[inside].mean(), right[inside].mean()
            each = Bin(float(confidence), float(accuracy), int(inside.sum()))
            found.append(each)
            error += each.count / len(places) * abs(each.confidence - each.accuracy)
    inside_range = probabilities.clip(1e-12, 1 - 1e-12)
    losses = preferences * np.log(inside_range) + (1 - preferences) * np.log(1 - inside_range)
    return Report(
        float(right.mean()), float(-losses.mean()), error, tuple(found), len(probabilities)
    )
