"""Exploration: rewards for observations that are new, and imitation of the best episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.data.segments import Segments
from fugu.policies.config import PolicyConfig
from fugu.policies.encoders import make_encoder
from fugu.policies.layers import RunningScale
from fugu.policies.policy import Policy
from fugu.spaces import Layout

FEATURES = 32  # outputs of the random network
MINIBATCH, LEARNING_RATE = 512, 1e-3  # of the predictor
NETWORK = PolicyConfig(layers=2, hidden_size=64, activation="relu", normalise=True)
AT_ONCE = 32  # of those that are kept, learned in one step
Ids = NDArray[np.int64]
Key = tuple[bytes, str]  # what an episode saw first, and its return in four digits


class Novelty:
    """Random network distillation: an intrinsic reward for observations that are new.

    A predictor learns the outputs of a fixed random network. It fails on what it has rarely seen,
    and its squared error is the reward (Burda et al. 2018, arXiv 1810.12894).

    Args:
        layout: The layout of the observations.
        device: Where observations are.

    >>> from gymnasium import spaces
    >>> novelty = Novelty(Layout.of(spaces.Box(-1, 1, (2,))))
    >>> old, new = torch.randn(256, 2), torch.full((1, 2), 5.0)
    >>> for _ in range(20):
    ...     error = novelty.learn(old, np.random.default_rng(0))
    >>> bool(novelty.rewards(torch.cat([old, new]))[-1] > novelty.rewards(old).max())
    True
    """

    def __init__(self, layout: Layout, device: torch.device | str = "cpu") -> None:
        self._target, self._predictor = (
            nn.Sequential(make_encoder(layout, NETWORK), nn.Linear(64, FEATURES)).to(device)
            for _ in range(2)
        )
        self._target.requires_grad_(False)
        self._optimizer = torch.optim.Adam(self._predictor.parameters(), LEARNING_RATE)
        self._count, self._mean, self._square = 0.0, 0.0, 0.0  # Welford's moments of the errors

    @torch.no_grad()
    def rewards(self, observations: Tensor) -> NDArray[np.float32]:
        """Return how new each observation `[count, size]` is, in units of the usual error."""
        if not self._count:
            self._normalize(observations)
        errors = self._errors(observations).double().cpu().numpy()
        self._note(errors)
        deviation = (self._square / self._count) ** 0.5
        scaled: NDArray[np.float32] = (errors / max(deviation, 1e-8)).astype(np.float32)
        return scaled

    def learn(self, observations: Tensor, random: np.random.Generator) -> float:
        """Train the predictor on observations `[count, size]` once; return its mean error."""
        self._normalize(observations)
        order = torch.from_numpy(random.permutation(len(observations)))
        total = 0.0
        for chosen in torch.split(order, MINIBATCH):
            loss = self._errors(observations[chosen]).mean()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            total += loss.item() * len(chosen)
        return total / max(1, len(order))

    def _errors(self, observations: Tensor) -> Tensor:
        with torch.no_grad():
            target = self._target(observations)
        found: Tensor = (self._predictor(observations) - target).square().mean(-1)
        return found

    @torch.no_grad()
    def _normalize(self, observations: Tensor) -> None:
        for network in (self._target, self._predictor):
            scales = [module for module in network.modules() if isinstance(module, RunningScale)]
            for scale in scales:
                scale.noting = True
            network(observations)
            for scale in scales:
                scale.noting = False

    def _note(self, errors: NDArray[np.float64]) -> None:
        total, shift = self._count + errors.size, float(errors.mean()) - self._mean
        self._square += float(errors.var()) * errors.size
        self._square += shift * shift * self._count * errors.size / total
        self._mean += shift * errors.size / total
        self._count = total

    def state_dict(self) -> dict[str, Any]:
        """Return all that an exact resume needs."""
        state: dict[str, Any] = {"moments": np.array([self._count, self._mean, self._square])}
        for name, network in (("target", self._target), ("predictor", self._predictor)):
            state |= {f"{name}.{key}": value for key, value in network.state_dict().items()}
        for i, parameter in enumerate(self._predictor.parameters()):
            for key, value in self._optimizer.state.get(parameter, {}).items():
                state[f"optimizer.{i}.{key}"] = value
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Return to a `state_dict`."""
        self._count, self._mean, self._square = map(float, np.asarray(state["moments"]))
        for name, network in (("target", self._target), ("predictor", self._predictor)):
            own = {key: torch.as_tensor(value) for key, value in state.items()}
            start = f"{name}."
            network.load_state_dict(
                {key.removeprefix(start): own[key] for key in own if key.startswith(start)}
            )
        for i, parameter in enumerate(self._predictor.parameters()):
            keys = [key for key in state if key.startswith(f"optimizer.{i}.")]
            if keys:
                self._optimizer.state[parameter] = {
                    key.rpartition(".")[2]: torch.as_tensor(state[key]).clone() for key in keys
                }


@dataclass(frozen=True)
class Kept:
    """One episode: what it earned, saw, was allowed and did, a row a step."""

    total: float
    observations: Tensor
    masks: NDArray[np.bool_]
    samples: NDArray[np.float32]


class SelfImitationBuffer:
    """The best episodes so far, which the policy learns to do again (priority queue training).

    As in Abolafia et al. 2018 (arXiv 1801.03526). It helps where reward is rare and what earned it
    once earns it again, such as a program that is written token by token. Unlike there, episodes
    that began alike and earned the same count as one, the shortest: otherwise variants of one
    episode soon fill the buffer, and nothing else is found.

    Args:
        capacity: Most episodes that are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: dict[Key, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def worst(self) -> float:
        """What an episode must exceed to be kept."""
        full = len(self) >= self._capacity
        return min(kept.total for kept in self._kept.values()) if full else -np.inf

    def offer(self, segments: Segments, rows: Ids) -> None:
        """Look for better ones in complete rows; those count that begin and end in one row."""
        totals, places, firsts, lasts = whole_episodes(segments, rows)
        table = segments.observations.table
        for i in np.lexsort((lasts - firsts, -totals)).tolist():
            total, worst = float(totals[i]), self.worst
            if total < worst:
                break
            row, steps = int(rows[places[i]]), slice(int(firsts[i]), int(lasts[i]) + 1)
            key = key_of(table[row, steps.start].to("cpu"), total)
            same = self._kept.get(key)
            better = total > worst if same is None else steps.stop - steps.start < len(same.samples)
            if better:
                seen = table[row, steps].to("cpu", copy=True)
                masks, samples = segments.masks[row, steps].copy(), segments.samples[row, steps]
                self._keep(key, Kept(total, seen, masks, samples.copy()))

    def loss(self, policy: Policy, random: np.random.Generator) -> Tensor:
        """How unlikely a policy finds what was done, as the mean over steps of some episodes."""
        kept = list(self._kept.values())
        if len(kept) > AT_ONCE:
            kept = [kept[i] for i in random.permutation(len(kept))[:AT_ONCE]]
        lengths = torch.tensor([len(episode.samples) for episode in kept])
        there = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)  # [episodes, time]
        device = next(policy.parameters()).device
        observations = padded([episode.observations for episode in kept]).to(device)
        samples = padded([torch.from_numpy(episode.samples) for episode in kept]).to(device)
        masks = None
        if not all(episode.masks.all() for episode in kept):
            masks = padded([torch.from_numpy(episode.masks) for episode in kept], 1).to(device)
        state = policy.initial_state(len(kept), device)
        resets = torch.zeros(there.shape, dtype=torch.bool)
        params, _ = policy.forward_segments(observations, state, resets)
        said, _ = policy.distribution.evaluate(params, samples, masks)
        return -torch.where(there.to(device), said, 0.0).sum() / int(lengths.sum())

    def state_dict(self) -> dict[str, Any]:
        """All that are kept, one after another."""
        kept = list(self._kept.values())
        if not kept:
            return {}
        return {
            "totals": np.array([episode.total for episode in kept]),
            "lengths": np.array([len(episode.samples) for episode in kept]),
            "observations": torch.cat([episode.observations for episode in kept]),
            "masks": np.concatenate([episode.masks for episode in kept]),
            "samples": np.concatenate([episode.samples for episode in kept]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        self._kept = {}
        if not state:
            return
        arrays = {name: np.asarray(value) for name, value in state.items()}
        for total, steps in zip(arrays["totals"], _slices(arrays["lengths"]), strict=True):
            seen = torch.from_numpy(arrays["observations"][steps].copy())
            masks, samples = (arrays[name][steps].copy() for name in ("masks", "samples"))
            self._kept[key_of(seen[0], float(total))] = Kept(float(total), seen, masks, samples)

    def _keep(self, key: Key, episode: Kept) -> None:
        self._kept[key] = episode
        if len(self) > self._capacity:
            del self._kept[min(self._kept, key=lambda other: self._kept[other].total)]


def key_of(first: Tensor, total: float) -> Key:
    """What episodes are told apart by."""
    return first.numpy().tobytes(), f"{total:.4g}"


def whole_episodes(segments: Segments, rows: Ids) -> tuple[NDArray[np.float64], Ids, Ids, Ids]:
    """Find the episodes that lie within one row from their first step to their last.

    Returns:
        Their returns, their places in `rows`, and their first and last steps, `[episodes]` each.
    """
    valid = segments.valid[:, rows].T
    ends = (segments.terminations | segments.truncations)[:, rows].T | ~valid
    places, times = np.nonzero(ends)
    follows = np.zeros(len(places), np.bool_)  # another end in the same row
    follows[1:] = places[1:] == places[:-1]
    firsts = np.where(follows, np.roll(times, 1) + 1, 0)
    whole = follows | segments.starts_episode[rows[places]]
    whole &= valid[places, times]  # a fault ends what it broke
    places, firsts, lasts = places[whole], firsts[whole], times[whole]
    rewards = np.where(valid, segments.rewards[:, rows].T, 0.0)
    sums = np.pad(rewards.cumsum(1, dtype=np.float64), ((0, 0), (1, 0)))  # before each step
    return sums[places, lasts + 1] - sums[places, firsts], places, firsts, lasts


def padded(episodes: list[Tensor], padding: int = 0) -> Tensor:
    """Episodes `[steps, ...]` as one tensor `[episodes, longest, ...]`."""
    return torch.nn.utils.rnn.pad_sequence(episodes, batch_first=True, padding_value=padding)


def _slices(lengths: Ids) -> Iterator[slice]:
    ends = np.cumsum(lengths).tolist()
    return (slice(end - int(length), end) for end, length in zip(ends, lengths, strict=True))
