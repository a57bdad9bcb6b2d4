"""The base of all adapters for environments of other libraries."""

from __future__ import annotations

import difflib
import hashlib
import math
import time
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import EnvError, UsageError
from fugu.core.seeding import episode_seed, fresh_seed
from fugu.envs.contract import AgentGroup, Buffers, Env, Info
from fugu.envs.episode_stats import EpisodeStats
from fugu.envs.slots import EmulationSettings, Slot
from fugu.envs.states import (
    ReplayError,
    SourceState,
    from_json,
    join_state,
    split_state,
    to_json,
)
from fugu.spaces import Layout
from fugu.spaces.flat import flat_space

WRAPPED = ("env", "aec_env", "par_env")  # attributes in which wrappers keep what they wrap


class FlatEnv(gymnasium.ObservationWrapper[NDArray[Any], Any, Any]):
    """A Gymnasium environment that returns flat rows; everything else stays as it was.

    Attributes:
        observation_layout: The layout of the rows.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], layout: Layout) -> None:
        super().__init__(env)
        self.observation_layout = layout
        self.observation_space = flat_space(layout)

    def observation(self, observation: Any) -> NDArray[Any]:
        """Pack an observation into a new row."""
        row = self.observation_layout.zeros()
        self.observation_layout.pack(observation, row)
        return row


class EmulatedEnv(Env):
    """The part of an adapter that does not depend on the library of its environment.

    Attributes:
        source: The environment itself.
        settings: How it is emulated.
    """

    def __init__(self, source: Any, groups: tuple[AgentGroup, ...], cfg: EmulationSettings) -> None:
        self.source, self.groups, self.settings = source, groups, cfg
        self._seeds_episodes = cfg.seeding == "episode" or (
            cfg.seeding == "auto" and not _reloads_when_seeded(source)
        )
        self._seed: int | None = None
        self._episode = -1
        self._steps = 0
        self._closed = False
        self._ended = False  # whether the last step left marks of an end, which must go
        self._follows = False  # whether the episode began so
        self._options: dict[str, Any] = {}  # of the reset that began it
        self._snapshot = SourceState.of(source) if cfg.resumable else None
        self._tried_snapshot = False
        replays = cfg.resumable and self._seeds_episodes
        self._taken = bytearray() if replays else None  # the actions of the episode
        self._replaying: Iterator[None] = iter(())
        self._attributes: dict[str, str] = {}  # that were set, as JSON
        self._originals: dict[str, tuple[Any, Any]] = {}  # their holders and first values
        self._first_attributes: dict[str, str] = {}  # those at the episode's start
        self._changes: list[tuple[int, str, str]] = []  # set since, after so many bytes of actions
        agents = (agent for group in groups for agent in group.agents)
        self._stats = {agent: EpisodeStats(cfg.reduce) for agent in agents}
        self.bind(*(Buffers.allocate(group) for group in groups))

    def bind(self, *buffers: Buffers) -> None:
        """Read and write these buffers from now on, one for each group; `reset` comes next."""
        if len(buffers) != len(self.groups):
            raise UsageError(
                f"bind: given {len(buffers)} buffers; allowed: {len(self.groups)}, one for each "
                f"group of {[group.name for group in self.groups]}."
            )
        self.buffers = buffers
        self._actions = [rows.actions for rows in buffers]
        self._action_bytes = sum(actions.nbytes for actions in self._actions)
        self._slots: dict[Hashable, Slot] = {}
        for group, rows in zip(self.groups, buffers, strict=True):
            rows.check(group)
            rows.valid[:] = True
            for row, agent in enumerate(group.agents):
                self._slots[agent] = Slot(group, rows, row, self.settings)
        self._episode = -1

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Reset the environment.

        Args:
            seed: Root of every later episode's seed; None: the seed given before, or a new one.
            options: For this reset only, on top of those given to `emulate`.
        """
        self._check_open()
        if seed is not None:
            if isinstance(seed, bool) or not hasattr(seed, "__index__"):
                raise UsageError(f"seed: given {seed!r}; allowed: an integer or None.")
            self._seed, self._episode = int(seed), -1
        elif self._seed is None and self._seeds_episodes:
            self._seed = fresh_seed()
        self._clear_rows()
        for slot in self._slots.values():
            slot.hide()
        self.infos = ()
        try:
            self._begin_episode(dict(options or {}))
        except Exception as error:
            self._note(error, "reset")
            raise
        if self._snapshot is not None and not self._tried_snapshot:
            self._try_snapshot()

    def step(self) -> None:
        """Take the actions of the live agents and write everything that follows."""
        if self._episode < 0:
            self._check_open()
            raise UsageError("step: given before reset; call reset(seed) first.")
        self._steps += 1
        if self._taken is not None:
            self._record_actions()
        try:
            self._step()
        except Exception as error:
            self._note(error, "step")
            raise

    def set_attribute(self, name: str, text: str) -> None:
        """Set an attribute of the source, or of what it wraps; states remember it.

        Args:
            name: An attribute that is there.
            text: Its value as JSON (`fugu.envs.states.to_json`).
        """
        if self._attributes.get(name) == text:
            return
        holder = find_holder(self.source, name)
        self._originals.setdefault(name, (holder, getattr(holder, name)))
        setattr(holder, name, from_json(text))
        self._attributes[name] = text
        if self._taken is not None and self._episode >= 0:
            self._changes.append((len(self._taken), name, text))

    def close(self) -> None:
        """Close the environment. Calling it again does nothing."""
        if not self._closed:
            self._closed, self._episode = True, -1
            self.source.close()

    def render(self) -> Any:
        """Render the environment in the render mode that it was made with."""
        self._check_open()
        return self.source.render()

    def to_gymnasium(self) -> FlatEnv:
        """Return a Gymnasium environment whose observations are flat rows."""
        raise UsageError(f"to_gymnasium: given {self.source}; allowed: a gymnasium.Env.")

    # ------------------------------------------------------------------ states

    def why_stateless(self) -> str | None:
        """Return why `state` does not work, as the rest of a sentence; None if it does."""
        if not self.settings.resumable:
            return "whose episodes are not kept; make it with resumable=True"
        if not self._seeds_episodes and not self._has_snapshot():
            return (
                "where only the first episode has a seed, so that no later one can be played "
                "again; seeding='episode' gives one to each"
            )
        return None

    def state(self) -> bytes:
        """Return its whole state, if it was made `resumable`.

        That is the source's own where it gives bytes; else the seed and the actions of the current
        episode. Rewards and ends of the last step are not part of it.
        """
        why = self.why_stateless()
        if why is not None:
            raise UsageError(f"state: given {self.source}, {why}.")
        if self._episode < 0:
            raise UsageError("state: given before reset; call reset(seed) first.")
        header: dict[str, Any] = {
            "seed": self._seed,
            "episode": self._episode,
            "follows": self._follows,
            "options": to_json(self._options, strict=True),
            "attributes": self._attributes,
        }
        if self._snapshot is None:
            assert self._taken is not None
            header |= {"attributes": self._first_attributes, "changes": self._changes}
            return join_state({**header, "digest": self._digest()}, [bytes(self._taken)])
        own, elapsed = self._snapshot.get()
        header |= {"elapsed": elapsed, "ended": self._ended, "rest": self._rest()}
        header |= {"stats": [stats.state() for stats in self._stats.values()]}
        return join_state(header, [own, *(array.tobytes() for array in self._shown())])

    def set_state(self, state: bytes) -> None:
        """Restore a `state()`; raise a `ReplayError` if the replayed episode differs."""
        self.begin_replay(state)
        self.go_on(math.inf)

    def begin_replay(self, state: bytes) -> None:
        """Start to restore a `state()`, which may take as long as its episode did."""
        self._check_open()
        header, parts = split_state(state)
        replays = not self._has_snapshot()
        if self.why_stateless() or ("digest" in header) != replays:
            raise UsageError(
                f"set_state: given a state of another environment than {self.source}, or of one "
                "made with other settings; allowed: a state of the same one."
            )
        self._replaying = self._replay(header, parts)

    def go_on(self, seconds: float) -> bool:
        """Continue what `begin_replay` started for about `seconds`; return whether it is done."""
        deadline = time.monotonic() + seconds
        return all(time.monotonic() <= deadline for _ in self._replaying)

    def _replay(self, header: dict[str, Any], parts: list[bytes]) -> Iterator[None]:
        """Reset to the episode's start, then replay its actions one at a time."""
        episode, options = header["episode"], from_json(header["options"])
        self._seed, self._episode, self._ended = header["seed"], episode - 1, header["follows"]
        self._set_attributes(header.get("attributes", {}))
        if "digest" not in header:
            self.reset(None, options)
            self._restore(header, parts)
            return
        actions, width = memoryview(parts[0]), max(self._action_bytes, 1)
        changes = list(header.get("changes", ()))
        try:
            self.reset(None, options)
            for start in range(0, len(actions), width):
                yield
                self._apply_changes(changes, start)
                self._write_actions(actions[start : start + width])
                self.step()
                if self._episode != episode:
                    raise EnvError(f"it ended after {start // width + 1} of them")
            self._apply_changes(changes, len(actions))
            if self._digest() != header["digest"]:
                raise EnvError("its agents see or get something else")
        except Exception as error:
            self._episode = episode  # the next reset begins the one after
            self._apply_changes(changes, len(actions))
            raise ReplayError(
                f"set_state: given {self.source}, whose episode {episode} of seed {self._seed} "
                f"went otherwise when its {len(actions) // width} actions were taken again "
                f"({error}); allowed: an environment that its seed and its actions decide, or one "
                "whose state() and set_state() give and take bytes. Call reset for a new episode."
            ) from error

    def _set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Set these attributes, and restore the first values of others that were set."""
        for name in self._attributes.keys() - attributes.keys():
            holder, value = self._originals[name]
            setattr(holder, name, value)
            del self._attributes[name]
        for name, text in attributes.items():
            self.set_attribute(name, text)

    def _apply_changes(self, changes: list[tuple[int, str, str]], end: int) -> None:
        """Apply and drop the changes of attributes up to so many bytes of actions."""
        while changes and changes[0][0] <= end:
            _, name, text = changes.pop(0)
            self.set_attribute(name, text)

    def _restore(self, header: dict[str, Any], parts: list[bytes]) -> None:
        """Restore a state of the source's own."""
        assert self._snapshot is not None
        self._snapshot.put(parts[0], header["elapsed"])
        for array, part in zip(self._shown(), parts[1:], strict=True):
            array[...] = np.frombuffer(part, array.dtype).reshape(array.shape)
        for slot in self._slots.values():
            slot.take_over()
        for stats, saved in zip(self._stats.values(), header["stats"], strict=True):
            stats.set_state(saved)
        self._ended = header["ended"]
        self._set_rest(header["rest"])

    def _shown(self) -> list[NDArray[Any]]:
        shown = [
            array
            for rows in self.buffers
            for array in (rows.observations, rows.live, rows.action_masks)
        ]
        state = self.buffers[0].global_state
        return [*shown, state] if state.size else shown

    def _digest(self) -> str:
        """Hash the rows of live agents, and the rewards if the episode has steps."""
        found = hashlib.blake2b(digest_size=16)
        for rows in self.buffers:
            found.update(rows.live.tobytes())
            found.update(rows.observations[rows.live].tobytes())
            found.update(rows.action_masks[rows.live].tobytes())
            found.update(rows.global_state.tobytes())
            if self._taken:
                found.update(rows.rewards.tobytes())
                found.update(rows.costs.tobytes())
        return found.hexdigest()

    def _record_actions(self) -> None:
        assert self._taken is not None
        for actions in self._actions:
            self._taken += actions.tobytes()

    def _write_actions(self, actions: memoryview) -> None:
        start = 0
        for rows in self._actions:
            part = actions[start : start + rows.nbytes]
            rows[...] = np.frombuffer(part, rows.dtype).reshape(rows.shape)
            start += rows.nbytes

    def _has_snapshot(self) -> bool:
        """Whether the source gives its state as bytes; found out by asking it for one."""
        if self._snapshot is not None and not self._tried_snapshot:
            self.reset()
        return self._snapshot is not None

    def _try_snapshot(self) -> None:
        assert self._snapshot is not None
        self._tried_snapshot = True
        if self._snapshot.works():
            self._taken = None
        else:
            self._snapshot = None

    # ------------------------------------------------------------------ for the adapters

    def _rest(self) -> Any:
        """Return what else the adapter keeps of an episode, as plain values."""

    def _set_rest(self, rest: Any) -> None:
        """Restore what `_rest` returned."""

    def _begin_episode(self, options: dict[str, Any]) -> None:
        """Reset the environment and show the first observations."""
        raise NotImplementedError("_begin_episode(options: dict) -> None")

    def _step(self) -> None:
        """Step the environment once."""
        raise NotImplementedError("_step() -> None")

    def _next_reset(self, options: dict[str, Any]) -> dict[str, Any]:
        """Start an episode's records; return the arguments of its reset."""
        self._episode += 1
        self._steps = 0
        self._follows, self._options = self._ended, options
        for stats in self._stats.values():
            stats.clear()
        if self._taken is not None:
            self._taken.clear()
        self._first_attributes, self._changes = dict(self._attributes), []
        seed = self._seed
        if self._seeds_episodes:
            assert seed is not None
            seed = episode_seed(seed, self._episode)
        elif self._episode > 0:
            seed = None
        elif seed is not None and (self.settings.seeding == "auto" or seed >= 1 << 32):
            seed = episode_seed(seed, 0)  # many generators take 32 bits
        merged = {**self.settings.reset_options, **options}
        return {"seed": seed, "options": merged or None}

    def _clear_rows(self) -> None:
        for rows in self.buffers:
            rows.rewards.fill(0)
            rows.costs.fill(0)
            rows.terminations.fill(False)
            rows.truncations.fill(False)

    def _emit(self, agent: Hashable) -> Info:
        info = self._stats[agent].emit()
        return {**info, "agent": agent} if len(self._slots) > 1 else info

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"given {self.source}, which is closed; make a new one.")

    def _note(self, error: Exception, call: str) -> None:
        """Add to an error where it came from."""
        if self._taken is not None and call == "step":
            del self._taken[-self._action_bytes :]  # an action that was refused is no step
        error.add_note(f"in {call} of {EmulatedEnv.where(self)}")

    def where(self) -> str:
        """Return which environment, seed, episode and step this is, for errors."""
        episode = max(self._episode, 0)
        return f"{self.source} (seed {self._seed}, episode {episode}, step {self._steps})"


def _reloads_when_seeded(source: Any) -> bool:
    """Whether a seed makes it reload its game, as in ALE, where that is 20 times slower."""
    return getattr(getattr(source, "unwrapped", source), "ale", None) is not None


def find_holder(env: Any, name: str) -> Any:
    """Return the first of an environment and those that it wraps that has an attribute itself.

    >>> import gymnasium
    >>> env = gymnasium.make("CartPole-v1")
    >>> find_holder(env, "gravity") is env.unwrapped
    True
    >>> find_holder(env, "gravty")
    Traceback (most recent call last):
        ...
    fugu.core.errors.UsageError: set_env: expected an attribute of CartPoleEnv or of its wrappers; got 'gravty'. Did you mean 'gravity'?
    """  # noqa: E501
    layers = list(_layers(env))
    for layer in layers:
        if name in getattr(layer, "__dict__", {}) or hasattr(type(layer), name):
            return layer
    known = [key for key in getattr(layers[-1], "__dict__", {}) if not key.startswith("_")]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"Did you mean {close[0]!r}?" if close else f"It has {', '.join(sorted(known))}."
    raise UsageError(
        f"set_env: expected an attribute of {type(layers[-1]).__name__} or of its wrappers; "
        f"got {name!r}. {hint}"
    )


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment, what it wraps, what that wraps, and so on."""
    while env is not None:
        yield env
        inside = getattr(env, "__dict__", {})
        env = next((inside[key] for key in WRAPPED if key in inside), None)
