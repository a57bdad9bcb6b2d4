"""Replay: the last steps of many agents, from which sequences are drawn.

A step is what an agent saw, what came with it, and what it then did. The last observation of an
episode is a step of its own, behind which nothing is done; the first of the next one stands behind
it. So a sequence may run over the ends of episodes, and its flags say where they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fugu.core.errors import UsageError
from fugu.data.segments import Rewarded
from fugu.envs.contract import AgentGroup, Buffers

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class ReplayShape:
    """The size of a replay."""

    agents: int
    steps: int  # of each agent
    length: int  # of a sequence, without the step before it
    num_samples: int  # numbers of a sampled action
    deter: int  # numbers of the recurrent part of a latent state
    stoch: int  # categories of the other part


@dataclass(frozen=True)
class Sequences:
    """Sequences as tensors, `[time, batch, ...]`; time 0 is the step before each sequence."""

    observations: Tensor  # in the layout's dtype
    samples: Tensor  # of the actions that followed each observation
    masks: Tensor  # which choices were allowed for them
    rewards: Tensor  # received with each observation
    first: Tensor  # whether an episode begins with it
    last: Tensor  # whether an episode ends with it
    terminal: Tensor  # whether the environment itself ended the episode
    deter: Tensor  # of the latent state at time 0, [batch, deter]
    stoch: Tensor  # categories of the latent state at time 0, [batch, stoch]
    places: Ids  # indices of the steps in the replay, [time, batch], for `refresh`


class Replay:
    """A ring of steps for each agent; sequences start at every step of every agent alike.

    Rewards that reach an agent between its actions belong to its next step. Observations keep
    their flat dtype; latent states take two bytes a number and one a category. Memory is claimed
    as it is filled. `pending` is what is known of the next step of every agent.
    """

    bootstraps: ClassVar[bool] = False

    def __init__(self, group: AgentGroup, shape: ReplayShape, *, online: bool = True) -> None:
        if shape.steps <= shape.length:
            raise UsageError(
                f"replay: given {shape.steps} steps for each of {shape.agents} agents; allowed: "
                f"more than {shape.length}, a sequence's. Raise train.replay-size, or lower "
                "vec.num-envs."
            )
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
        self._fresh: deque[tuple[int, int]] = deque()  # agents and first steps of new sequences
        self.pending: dict[str, NDArray[Any]] = {
            "rewards": np.zeros(shape.agents, np.float32),  # since the last action
            "waiting": np.zeros(shape.agents, np.bool_),  # for what follows the last action
            "first": np.ones(shape.agents, np.bool_),  # whether an episode begins next
        }

    def __len__(self) -> int:
        """Return the number of steps that it holds."""
        return int(np.minimum(self._written, self.shape.steps).sum())

    @property
    def full(self) -> bool:
        """Whether a sequence can start anywhere."""
        return bool(self.starts)

    @property
    def starts(self) -> int:
        """Number of steps at which a sequence can start."""
        return int(self._starts().sum())

    def record_reward(
        self,
        agents: Ids,
        rewards: Floats,
        terminations: Flags,
        truncations: Flags,
        valid: Flags,
        live: Flags,
        costs: Floats | None = None,
    ) -> Rewarded:
        """Record what reached these agents now; it belongs to the steps that follow."""
        acted = self.pending["waiting"][agents]
        self.pending["rewards"][agents] += np.where(acted & valid, rewards, 0.0)
        complete = acted & (live | terminations | truncations | ~valid)
        return Rewarded(acted, complete, self.pending["rewards"][agents])

    def bootstrap(self, agents: Ids, final_values: Floats) -> None:
        """Do nothing: the last observations of episodes are steps."""

    def record_ends(self, agents: Ids, rows: Buffers, acted: Flags) -> None:
        """Record the last observations of episodes, of agents that had `acted`."""
        ended = rows.terminations | rows.truncations | ~rows.valid
        if not ended.any():
            return
        over, rewards = ended & acted & rows.valid, self.pending["rewards"]
        self.add(
            agents[over],
            observations=rows.final[over],
            rewards=rewards[agents[over]],
            last=True,
            terminal=rows.terminations[over],
        )
        self.end(agents[acted & ~rows.valid])
        gone = agents[ended]
        rewards[gone], self.pending["waiting"][gone], self.pending["first"][gone] = 0.0, False, True

    def record_step(
        self,
        agents: Ids,
        observations: NDArray[Any],
        masks: Flags,
        samples: Floats,
        *_: Any,
        **latents: Any,
    ) -> None:
        """Record what agents see and do now, with their latent states `deter` and `stoch`."""
        rewards, waiting, first = self.pending.values()
        values = {"observations": observations, "samples": samples, "masks": masks, **latents}
        self.add(agents, rewards=rewards[agents], first=first[agents], **values)
        rewards[agents], waiting[agents], first[agents] = 0.0, True, False

    def add(self, agents: Ids, **values: Any) -> None:
        """Add one step of each of these agents; values that are not given are zero."""
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
        """Make the steps added last the last of their episodes, whose end nobody saw."""
        agents = agents[self._written[agents] > 0]
        rows = agents * self.shape.steps + (self._written[agents] - 1) % self.shape.steps
        self._flat["last"][rows] = True

    def sample(self, batch: int, random: np.random.Generator, device: torch.device) -> Sequences:
        """Return sequences: new ones first, then others drawn uniformly from all starts."""
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
        """Replace latent states; categories are `[time, batch, stoch]`."""
        self._flat["deter"][places] = deter.detach().to(torch.float16).cpu().numpy()
        self._flat["stoch"][places] = stoch.to(torch.uint8).cpu().numpy()

    def _choose(self, batch: int, random: np.random.Generator) -> tuple[Ids, Ids]:
        """Return agents, and the first step of a sequence of each, counted from its first ever."""
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
        """Return all that was written, as arrays."""
        filled = int(min(self._written.max(initial=0), self.shape.steps))
        return {
            **{name: array[:, :filled] for name, array in self._arrays.items()},
            "written": self._written,
            "fresh": np.array(self._fresh, np.int64).reshape(-1, 2),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
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
