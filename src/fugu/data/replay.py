"""Replay: the last steps of many agents, from which sequences are drawn.

A step is what an agent saw, what came with it, and what it then did. The last observation of an
episode is a step of its own, behind which nothing is done; the first of the next one stands behind
it. So a sequence may run over the ends of episodes, and its flags say where they are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class ReplayShape:
    """How much a replay holds.

    Attributes:
        agents: Whose steps.
        steps: Of each agent.
        length: Of a sequence, without the step before it.
        num_samples: Numbers of a sampled action.
        deter: Numbers of the recurrent part of a latent state.
        stoch: Categories of the other.
    """

    agents: int
    steps: int
    length: int
    num_samples: int
    deter: int
    stoch: int

    def __post_init__(self) -> None:
        if self.steps <= self.length:
            raise UsageError(
                f"replay: given {self.steps} steps for each of {self.agents} agents; allowed: "
                f"more than {self.length}, a sequence's. Raise train.replay-size, or lower "
                "vec.num-envs."
            )


@dataclass(frozen=True)
class Sequences:
    """Sequences as tensors, `[time, batch, ...]`; time 0 is the step before each sequence.

    Attributes:
        observations: In the layout's dtype.
        samples: Of the actions that followed each observation.
        masks: Which choices were allowed for them.
        rewards: That came with each observation.
        first: Whether an episode begins with it.
        last: Whether one ends with it.
        terminal: Whether that end is the environment's own.
        deter: Of the latent state at time 0, `[batch, deter]`.
        stoch: Categories of the same, `[batch, stoch]`.
        places: Where the sequences stand, `[time, batch]`; `refresh` takes them.
    """

    observations: Tensor
    samples: Tensor
    masks: Tensor
    rewards: Tensor
    first: Tensor
    last: Tensor
    terminal: Tensor
    deter: Tensor
    stoch: Tensor
    places: Ids


class Replay:
    """A ring of steps for each agent; sequences start at every step of every agent alike.

    Observations keep their flat dtype, latent states are stored in two bytes a number and one a
    category. Memory is claimed as it is filled.
    """

    def __init__(self, group: AgentGroup, shape: ReplayShape, *, online: bool = True) -> None:
        self.shape, self._online = shape, online
        layout, places = group.observation_layout, (shape.agents, shape.steps)
        self._arrays: dict[str, NDArray[Any]] = {
            "observations": np.zeros((*places, layout.size), layout.dtype),
            "samples": np.zeros((*places, shape.num_samples), np.float32),
            "masks": np.zeros((*places, group.mask_width), np.bool_),
            "rewards": np.zeros(places, np.float32),
            "first": np.zeros(places, np.bool_),
            "last": np.zeros(places, np.bool_),
            "terminal": np.zeros(places, np.bool_),
            "deter": np.zeros((*places, shape.deter), np.float16),
            "stoch": np.zeros((*places, shape.stoch), np.uint8),
        }
        rows = shape.agents * shape.steps
        self._flat = {k: v.reshape(rows, *v.shape[2:]) for k, v in self._arrays.items()}
        self._written = np.zeros(shape.agents, np.int64)  # steps of each agent, ever
        self._fresh: deque[tuple[int, int]] = deque()  # an agent, and a step of it

    def __len__(self) -> int:
        """Steps that it holds."""
        return int(np.minimum(self._written, self.shape.steps).sum())

    @property
    def starts(self) -> int:
        """Places where a sequence can start."""
        return int(self._starts().sum())

    def add(self, agents: Ids, **values: Any) -> None:
        """One step of each of these agents; what is not given is zero."""
        if not len(agents):
            return
        written = self._written[agents]
        rows = agents * self.shape.steps + written % self.shape.steps
        for name, array in self._flat.items():
            array[rows] = values.get(name, 0)
        self._written[agents] += 1
        if self._online:
            whole = (written > 0) & (written % self.shape.length == 0)
            for agent, step in zip(agents[whole], written[whole] - self.shape.length, strict=True):
                self._fresh.append((int(agent), int(step)))

    def end(self, agents: Ids) -> None:
        """The steps added last were the last of their episodes, though nobody saw what followed."""
        agents = agents[self._written[agents] > 0]
        rows = agents * self.shape.steps + (self._written[agents] - 1) % self.shape.steps
        self._flat["last"][rows] = True

    def sample(self, batch: int, random: np.random.Generator, device: torch.device) -> Sequences:
        """Sequences: those that are new first, then any, each start as probable as every other."""
        agents, steps = self._choose(batch, random)
        times = np.arange(self.shape.length + 1)[:, None] + steps  # [time, batch]
        places = agents * self.shape.steps + times % self.shape.steps
        found = {}
        for name, array in self._flat.items():
            rows = places[0] if name in ("deter", "stoch") else places
            found[name] = torch.from_numpy(np.take(array, rows, 0)).to(device)
        found["deter"], found["stoch"] = found["deter"].float(), found["stoch"].long()
        return Sequences(**found, places=places)

    def refresh(self, places: Ids, deter: Tensor, stoch: Tensor) -> None:
        """Latent states that were found anew, of categories `[time, batch, stoch]`."""
        self._flat["deter"][places] = deter.detach().to(torch.float16).cpu().numpy()
        self._flat["stoch"][places] = stoch.to(torch.uint8).cpu().numpy()

    def _choose(self, batch: int, random: np.random.Generator) -> tuple[Ids, Ids]:
        """Agents, and the first step of a sequence of each, counted from its first ever."""
        starts = self._starts()
        total = int(starts.sum())
        if not total:
            raise UsageError(
                f"replay: given {len(self)} steps; allowed: a sequence of {self.shape.length} "
                "steps and one before it, of one agent at least."
            )
        oldest = np.maximum(self._written - self.shape.steps, 0)
        fresh: list[tuple[int, int]] = []
        while self._fresh and len(fresh) < batch:
            agent, step = self._fresh.popleft()
            if step >= oldest[agent]:  # else it was overwritten while it waited
                fresh.append((agent, step))
        ends = np.cumsum(starts)
        drawn = random.integers(total, size=batch - len(fresh))
        agents = np.searchsorted(ends, drawn, side="right")
        steps = oldest[agents] + drawn - (ends - starts)[agents]
        if not fresh:
            return agents, steps
        new = np.array(fresh, np.int64)
        return np.concatenate([new[:, 0], agents]), np.concatenate([new[:, 1], steps])

    def _starts(self) -> Ids:
        held = np.minimum(self._written, self.shape.steps)
        found: Ids = np.maximum(held - self.shape.length, 0)
        return found

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that was written, as arrays."""
        filled = int(min(self._written.max(initial=0), self.shape.steps))
        return {
            **{name: array[:, :filled] for name, array in self._arrays.items()},
            "written": self._written,
            "fresh": np.array(self._fresh, np.int64).reshape(-1, 2),
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        for name, array in self._arrays.items():
            given = state[name]
            fits = given.shape[0] == len(array) and given.shape[2:] == array.shape[2:]
            if not fits or given.shape[1] > array.shape[1] or given.dtype != array.dtype:
                raise UsageError(
                    f"replay: given {name} of shape {given.shape}; allowed: {array.shape} or fewer "
                    "steps. A run is resumed with the settings that it began with."
                )
            array[:, : given.shape[1]] = given
        self._written[:] = state["written"]
        self._fresh = deque((int(agent), int(step)) for agent, step in state["fresh"])
