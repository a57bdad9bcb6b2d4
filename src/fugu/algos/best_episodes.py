"""Priority queue training: the best episodes so far are kept, and learned to be done again.

As in Abolafia et al. 2018 (arXiv 1801.03526). It helps where reward is rare and what earned it once
earns it again, such as a program that is written token by token. Unlike there, episodes that began
alike and earned the same are taken for one, the shortest: otherwise variants of one deed, which
differ in what does not matter, soon are all that is kept, and nothing else is found any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fugu.data.segments import Segments
from fugu.policies.policy import Policy

AT_ONCE = 32  # of those that are kept, learned in one step
Ids = NDArray[np.int64]
Key = tuple[bytes, str]  # what an episode saw first, and its return in four digits


@dataclass(frozen=True)
class Kept:
    """One episode: what it earned, saw, was allowed and did, a row a step."""

    total: float
    observations: Tensor
    masks: NDArray[np.bool_]
    samples: NDArray[np.float32]


class BestEpisodes:
    """Episodes with the highest returns, of those that began and earned alike the shortest.

    Args:
        capacity: How many are kept.
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
