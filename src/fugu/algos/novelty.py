"""Random network distillation: an intrinsic reward for observations that are new (RND).

A predictor learns the outputs of a fixed random network. It fails on what it has rarely seen, and
its squared error is the reward (Burda et al. 2018, arXiv 1810.12894).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.policies.config import PolicyConfig
from fugu.policies.encoders import make_encoder
from fugu.policies.layers import RunningScale
from fugu.spaces import Layout

FEATURES = 32  # outputs of the random network
MINIBATCH, LEARNING_RATE = 512, 1e-3  # of the predictor
NETWORK = PolicyConfig(layers=2, hidden_size=64, activation="relu", normalise=True)


class Novelty:
    """Rewards observations that a predictor cannot predict yet.

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
