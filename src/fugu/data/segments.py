"""Segments: fixed stretches of agents' experience, `[rows, horizon]`, as the learner reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.data.observations import Observations
from fugu.envs.contract import AgentGroup

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class SegmentShape:
    """How much a store holds.

    Attributes:
        agents: Whose experience it is.
        rows: Complete rows that an update needs.
        horizon: Steps of a row.
        num_samples: Numbers of a sampled action.
        state_size: Of an agent's recurrent state.
        num_critics: Values of an observation.
        num_costs: Constraints that agents pay for.
    """

    agents: int
    rows: int
    horizon: int
    num_samples: int
    state_size: int = 0
    num_critics: int = 1
    num_costs: int = 0


class Rewarded(NamedTuple):
    """What `record_reward` found of the agents that it was given."""

    acted: Flags  # those who had acted, and so were rewarded, [agents]
    complete: Flags  # those whose last action earns nothing more
    rewards: Floats  # the sum of what their last actions earned so far


class Segments:
    """Rows that agents fill step by step, in whatever order batches come.

    An agent writes into one row at a time, a step whenever it acts: what reaches it while others
    act (it waits for its turn, or is dead) belongs to its last action, so no step is padding. A
    row is complete when its last step's reward and the value after it have come; until then it is
    open, and open rows stay from one update to the next. So there are as many rows as an update
    needs, one for each agent, and one more for each, since all may complete theirs at once when
    one was missing.

    Observations and samples stand row by row, `[rows, horizon, ...]`, which a minibatch gathers
    whole; numbers that the advantage kernel runs along stand time by time, `[horizon, rows]`, one
    such table for each critic and each constraint.

    Attributes:
        observations: `[rows, horizon, size]`, in the layout's dtype; see `Observations`.
        samples: Of the actions, `[rows, horizon, numbers]`.
        masks: Which choices were allowed, `[rows, horizon, choices]`.
        states: Recurrent states at the start of each row, `[rows, state]`.
        log_probabilities: Of the samples, when they were drawn. `[horizon, rows]`
        values: Of the observations, and one more time for what comes after.
            `[critics, horizon + 1, rows]`
        final_values: Of final observations, where truncated. `[critics, horizon, rows]`
        rewards: Beside the actions that earned them. `[horizon, rows]`
        costs: Beside the actions that they were paid for. `[constraints, horizon, rows]`
        terminations: `[horizon, rows]`
        truncations: `[horizon, rows]`
        valid: Whether no fault broke the step. `[horizon, rows]`
        starts_episode: Whether the first step of a row is the first of an episode. `[rows]`
        episode_costs: Of whole episodes; those that ended are forgotten with the next `release`.
    """

    bootstraps: ClassVar[bool] = True

    def __init__(
        self,
        group: AgentGroup,
        shape: SegmentShape,
        device: torch.device | None = None,
        offload: bool = False,
    ) -> None:
        self.group, self.shape = group, shape
        total, horizon = shape.rows + 2 * shape.agents, shape.horizon
        layout = group.observation_layout
        self.observations = Observations(
            (total, horizon, layout.size), layout.dtype, device or torch.device("cpu"), offload
        )
        self.samples = np.zeros((total, horizon, shape.num_samples), np.float32)
        self.masks = np.ones((total, horizon, group.mask_width), np.bool_)
        self.states = np.zeros((total, shape.state_size), np.float32)
        self.log_probabilities = np.zeros((horizon, total), np.float32)
        self.values = np.zeros((shape.num_critics, horizon + 1, total), np.float32)
        self.final_values = np.zeros((shape.num_critics, horizon, total), np.float32)
        self.rewards = np.zeros((horizon, total), np.float32)
        self.costs = np.zeros((shape.num_costs, horizon, total), np.float32)
        self.terminations = np.zeros((horizon, total), np.bool_)
        self.truncations = np.zeros((horizon, total), np.bool_)
        self.valid = np.zeros((horizon, total), np.bool_)
        self.starts_episode = np.arange(total) < shape.agents  # environments begin with a reset
        self.episode_costs = EpisodeCosts(shape.agents, shape.num_costs)
        self._row_of = np.arange(shape.agents)  # each agent's open row
        self._length = np.zeros(shape.agents, np.int64)  # steps in it
        self._waiting = np.zeros(shape.agents, np.bool_)  # for what its last action earns
        self._free = list(range(total - 1, shape.agents - 1, -1))
        self._complete: list[int] = []

    @property
    def complete(self) -> int:
        """Rows that are complete."""
        return len(self._complete)

    @property
    def full(self) -> bool:
        """Whether there are enough complete rows for an update."""
        return len(self._complete) >= self.shape.rows

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
        """Record what reached these agents now; it belongs to their last actions.

        Agents that have not acted since their last end are passed over. One that is not to act
        next, and whose episode continues, waits for more.
        """
        acted = self._waiting[agents]
        if not acted.all():
            agents, rewards, valid = agents[acted], rewards[acted], valid[acted]
            terminations, truncations, live = terminations[acted], truncations[acted], live[acted]
            costs = None if costs is None else costs[acted]
        rows, times = place(self._row_of[agents], self._length[agents] - 1)
        self.rewards[times, rows] += rewards
        if costs is not None and self.shape.num_costs:
            for kind, paid in zip(self.costs, costs.T, strict=True):
                kind[times, rows] += paid
            self.episode_costs.note(agents, costs, terminations | truncations, valid)
        self.terminations[times, rows] = terminations
        self.truncations[times, rows] = truncations
        self.valid[times, rows] = valid
        complete = live | terminations | truncations | ~valid
        self._waiting[agents] = ~complete
        if len(agents) == len(acted):
            return Rewarded(acted, complete, self.rewards[times, rows])
        found = Rewarded(acted, np.zeros(len(acted), np.bool_), np.zeros(len(acted), np.float32))
        found.complete[acted], found.rewards[acted] = complete, self.rewards[times, rows]
        return found

    def waiting(self, agents: Ids) -> Flags:
        """Return which of these agents have acted and not received all that follows."""
        found: Flags = self._waiting[agents]
        return found

    def bootstrap(self, agents: Ids, final_values: Floats) -> None:
        """Record the values `[agents, critics]` of final observations, of agents truncated now."""
        times, rows = self._length[agents] - 1, self._row_of[agents]
        self.final_values[:, times, rows] = final_values.T

    def record_step(
        self,
        agents: Ids,
        observations: NDArray[Any],
        masks: Flags,
        samples: Floats,
        log_probabilities: Floats,
        values: Floats,
        states: Floats,
        on_device: torch.Tensor | None = None,
    ) -> None:
        """Record what agents see and do now.

        An agent whose segment is full completes it, with the value of this observation for what
        comes after it, and begins another.

        Args:
            agents: The agents, each once.
            observations: `[agents, size]`
            masks: Which choices were allowed, `[agents, choices]`.
            samples: Of the actions, `[agents, numbers]`.
            log_probabilities: Of the samples, `[agents]`.
            values: `[agents, critics]`
            states: Recurrent states before the step, `[agents, state]`.
            on_device: The observations on the policy's device, if they are there already.
        """
        full = self._length[agents] == self.shape.horizon
        if full.any():
            self._complete_segments(agents[full], values[full])
        rows, times = place(self._row_of[agents], self._length[agents])
        self.observations.write(rows, times, observations, on_device)
        self.samples[rows, times] = samples
        if self.masks.shape[-1]:
            self.masks[rows, times] = masks
        if self.shape.state_size:
            begin = self._length[agents] == 0
            if begin.any():
                self.states[self._row_of[agents[begin]]] = states[begin]
        self.log_probabilities[times, rows] = log_probabilities
        for critic, value in zip(self.values, values.T, strict=True):
            critic[times, rows] = value
        self.rewards[times, rows] = 0.0
        for kind in self.costs:
            kind[times, rows] = 0.0
        self._length[agents] += 1
        self._waiting[agents] = True

    def _complete_segments(self, agents: Ids, values: Floats | None = None) -> None:
        rows = self._row_of[agents]
        if values is not None:
            self.values[:, self.shape.horizon, rows] = values.T
        if len(self._free) < len(agents):
            raise UsageError(
                f"record_step: given {len(agents)} agents that need new segments; allowed: "
                f"{len(self._free)}. take and release complete segments first."
            )
        self._complete += rows.tolist()
        left, last = len(self._free) - len(agents), self.shape.horizon - 1
        ended = self.terminations[last, rows] | self.truncations[last, rows]
        self._row_of[agents] = self._free[left:][::-1]
        self.starts_episode[self._row_of[agents]] = ended | ~self.valid[last, rows]
        del self._free[left:]
        self._length[agents] = 0

    # ------------------------------------------------------------------ agents in step

    def in_step(self) -> tuple[int, int, int] | None:
        """Return the steps of all agents' open segments, the first of those, and of the next ones.

        None if their steps differ, or if open or next segments do not stand side by side.
        """
        agents, steps = self.shape.agents, int(self._length[0])
        alike = (self._length == steps).all() and (self._waiting == (steps > 0)).all()
        following = self._free[-agents:][::-1]
        if not alike or len(following) < agents:
            return None
        if (np.diff(self._row_of) != 1).any() or (np.diff(following) != 1).any():
            return None
        return steps, int(self._row_of[0]), following[0]

    def complete_in_step(self) -> None:
        """Complete all open segments: native code filled them, and began the next ones."""
        everyone = np.arange(self.shape.agents)
        self._complete_segments(everyone)
        self._length[:], self._waiting[:] = 1, True

    @property
    def observation_bytes(self) -> NDArray[np.uint8]:
        """Observations in the CPU's memory, `[segments, horizon, bytes]`."""
        table = self.observations.array
        assert table is not None
        return table.view(np.uint8).reshape(*table.shape[:2], -1)

    def take(self) -> Ids:
        """The oldest complete rows that an update is made of; `release` gives them back."""
        if not self.full:
            raise UsageError(
                f"take: given {self.complete} complete rows; allowed: {self.shape.rows} or more."
            )
        return np.array(self._complete[: self.shape.rows], np.int64)

    def release(self, rows: Ids) -> None:
        """These rows were learned from and may be written anew."""
        self.episode_costs.clear()
        done = set(rows.tolist())
        self._complete = [row for row in self._complete if row not in done]
        self._free += rows.tolist()[::-1]

    def resets(self, rows: Ids) -> Flags:
        """Where recurrent states begin anew: after an end or a fault, `[rows, horizon]`."""
        ended = (self.terminations | self.truncations | ~self.valid)[:, rows].T
        out = np.zeros(ended.shape, np.bool_)
        out[:, 1:] = ended[:, :-1]
        return out

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that is open, as arrays."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {
            **arrays,
            **(self.episode_costs.state_dict() if self.shape.num_costs else {}),
            "observations": self.observations.table.cpu().numpy(),
            "row_of": self._row_of,
            "length": self._length,
            "waiting": self._waiting,
            "starts_episode": self.starts_episode,
            "free": np.array(self._free, np.int64),
            "complete": np.array(self._complete, np.int64),
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        seen = self.observations.array
        if seen is None:
            seen = self.observations.table.cpu().numpy()
        for name in ("observations", *_ARRAYS):
            mine = seen if name == "observations" else getattr(self, name)
            if state[name].shape != mine.shape or state[name].dtype != mine.dtype:
                raise UsageError(
                    f"segments: given {name} of shape {state[name].shape}; allowed: {mine.shape}. "
                    "A run is resumed with the settings that it began with."
                )
            mine[...] = state[name]
        self.observations.table.copy_(torch.from_numpy(seen))
        rows = np.concatenate([state[name] for name in ("row_of", "free", "complete")])
        length, whole = state["length"], np.arange(len(self.states))
        if not np.array_equal(np.sort(rows), whole) or not _within(length, self.shape.horizon):
            raise UsageError(  # native code writes where they say
                "segments: given rows that are open, free or complete twice, or not at all, or "
                f"longer than {self.shape.horizon}; allowed: each once. Use another checkpoint."
            )
        self._row_of[:], self._length[:] = state["row_of"], length
        self._waiting[:] = state["waiting"]
        self.starts_episode[:] = state.get("starts_episode", False)  # older checkpoints lack it
        if "episode_costs" in state:
            self.episode_costs.load_state_dict(state)
        self._free, self._complete = state["free"].tolist(), state["complete"].tolist()


def _within(lengths: Ids, most: int) -> bool:
    return bool((lengths >= 0).all() and (lengths <= most).all())


def place(rows: Ids, times: Ids) -> tuple[Any, Any]:
    """Where to write: a slice of rows and one time in lock-step, else pairs of both.

    >>> place(np.array([4, 5, 6]), np.array([2, 2, 2]))
    (slice(4, 7, None), 2)
    >>> place(np.array([4, 5]), np.array([2, 3]))
    (array([4, 5]), array([2, 3]))
    """
    if not len(rows) or (times != times[0]).any():
        return rows, times
    side_by_side = (np.diff(rows) == 1).all()
    return slice(int(rows[0]), int(rows[-1]) + 1) if side_by_side else rows, int(times[0])


_ARRAYS = (
    "samples", "masks", "states", "log_probabilities", "values", "final_values",
    "rewards", "costs", "terminations", "truncations", "valid",
)  # fmt: skip


class EpisodeCosts:
    """What agents have paid since their episodes began, and what ended episodes came to.

    >>> costs = EpisodeCosts(agents=2, constraints=1)
    >>> both, one = np.array([0, 1]), np.array([[1.0], [3.0]], np.float32)
    >>> costs.note(both, one, np.array([False, False]), np.array([True, True]))
    >>> costs.note(both, one, np.array([True, False]), np.array([True, True]))
    >>> costs.finished.tolist()
    [[2.0]]
    """

    def __init__(self, agents: int, constraints: int) -> None:
        self._sums = np.zeros((agents, constraints))
        self._finished = np.zeros((0, constraints))

    @property
    def finished(self) -> NDArray[np.float64]:
        """Of episodes that ended since `clear`, `[episodes, constraints]`."""
        return self._finished

    def clear(self) -> None:
        """Forget the ended episodes."""
        self._finished = self._finished[:0]

    def note(
        self,
        agents: NDArray[np.int64],
        costs: NDArray[np.float32],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
    ) -> None:
        """What agents paid now, `[agents, constraints]`; episodes that broke do not count."""
        sums = self._sums[agents] + np.where(valid[:, None], costs, 0.0)
        self._sums[agents] = np.where((ended | ~valid)[:, None], 0.0, sums)
        done = ended & valid
        if done.any():
            self._finished = np.concatenate([self._finished, sums[done]])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""
        return {"episode_costs": self._sums, "finished_costs": self._finished}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self._sums[:] = state["episode_costs"]
        self._finished = np.array(state["finished_costs"])


def by_constraint(name: str, numbers: Sequence[float] | NDArray[Any]) -> dict[str, float]:
    """One number for each constraint, by name; the bare name if there is only one.

    >>> by_constraint("cost", [1.5]), by_constraint("cost", [1.5, 2.0])
    ({'cost': 1.5}, {'cost_0': 1.5, 'cost_1': 2.0})
    """
    if len(numbers) == 1:
        return {name: float(numbers[0])}
    return {f"{name}_{i}": float(number) for i, number in enumerate(numbers)}
