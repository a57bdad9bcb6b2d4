"""An environment without faults, subclasses with one fault each, and the finding of each."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fugu.envs.checking import Report, check

STEPS = 60


def quietly(env: Any, **arguments: Any) -> Report:
    return check(env, **{"steps": STEPS, "show": False, **arguments})


def statuses(report: Report) -> dict[str, str]:
    return {row.name: row.status for row in report.rows}


class Walk(gymnasium.Env[Any, Any]):
    """A small environment without faults; its subclasses have one fault each."""

    observation_space: Any = spaces.Dict(
        body=spaces.Dict(position=spaces.Box(-1.0, 1.0, (2,), np.float32)),
        gear=spaces.Discrete(3),
    )
    action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
    length = 20

    def __init__(self) -> None:
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.see(), self.reward(), False, self.steps >= self.length, {}

    def see(self) -> Any:
        position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"body": {"position": position}, "gear": int(self.np_random.integers(3))}

    def reward(self) -> Any:
        return 1.0

    def close(self) -> None:
        self.closed += 1


class WrongShape(Walk):
    def see(self) -> Any:
        return super().see() | {"body": {"position": np.zeros(3, np.float32)}}


class FloatsForWhole(Walk):
    def see(self) -> Any:
        return super().see() | {"gear": 1.5}


class WiderDtype(Walk):
    def see(self) -> Any:
        return super().see() | {"body": {"position": self.np_random.uniform(-1, 1, 2)}}


class ListForArray(Walk):
    def see(self) -> Any:
        return super().see() | {"body": {"position": [0.5, -0.5]}}


class MissingKey(Walk):
    def see(self) -> Any:
        return {"body": super().see()["body"]}


class ExtraKey(Walk):
    def see(self) -> Any:
        return super().see() | {"secret": 1}


class OutOfBounds(Walk):
    def see(self) -> Any:
        value = [0.0, 7.5 if self.steps == 3 else 0.0]
        return super().see() | {"body": {"position": np.array(value, np.float32)}}


class JustOutOfBounds(Walk):
    def see(self) -> Any:
        above = np.nextafter(np.float32(1), np.float32(2))
        return super().see() | {"body": {"position": np.full(2, above)}}


class OutOfRange(Walk):
    def see(self) -> Any:
        return super().see() | {"gear": 3}


class NanObservation(Walk):
    def see(self) -> Any:
        return super().see() | {"body": {"position": np.array([0, np.nan], np.float32)}}


class InfiniteObservation(Walk):
    observation_space = spaces.Dict(speed=spaces.Box(-np.inf, np.inf, (1,)))

    def see(self) -> Any:
        return {"speed": np.array([np.inf * self.np_random.choice([1, -1])], np.float32)}


class NanReward(Walk):
    def reward(self) -> Any:
        return float("nan")


class HugeReward(Walk):
    def reward(self) -> Any:
        return 1e300


class ArrayReward(Walk):
    def reward(self) -> Any:
        return np.ones(1)


class ScalarArrayReward(Walk):
    def reward(self) -> Any:
        return np.array(1.0)


class TextReward(Walk):
    def reward(self) -> Any:
        return "1.0"


class NoReward(Walk):
    def reward(self) -> Any:
        return None


class IntegerFlags(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), int(truncated), info


class NoFlag(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, None, truncated, info


class TextInfo(Walk):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], "fine"


class FourValues(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, truncated, info


class BareReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class ResetWithoutOptions(Walk):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class Unseeded(Walk):
    def see(self) -> Any:
        return super().see() | {"gear": int(np.random.randint(3))}  # noqa: NPY002


class Leaky(Walk):
    """Remembers something over a reset, so that only its first episode can be had again."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed)

    def see(self) -> Any:
        return super().see() | {"gear": min(self.episodes, 5) % 3}


class OneSeed(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=7)


class Aliasing(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.buffers = [np.zeros(2, np.float32) for _ in range(2)]

    def see(self) -> Any:
        observation = super().see()
        buffer = self.buffers[self.np_random.integers(2)]
        buffer[:] = observation["body"]["position"]
        return observation | {"body": {"position": buffer}}


class WritesAction(Walk):
    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action)


class RaisesInStep(Walk):
    def step(self, action: Any) -> Any:
        if self.steps == 5:
            raise ValueError("the wheel came off")
        return super().step(action)


class ExitsInStep(Walk):
    def step(self, action: Any) -> Any:
        sys.exit("goodbye")


class RaisesInReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise ValueError("no road")


class RaisesInConstructor(Walk):
    def __init__(self) -> None:
        raise ValueError("no wheels")


class RaisesInClose(Walk):
    def close(self) -> None:
        raise ValueError("stuck door")


class RaisesSecondTime(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets = getattr(self, "resets", 0) + 1
        if self.resets > 4:
            raise ValueError("tired")
        return super().reset(seed=seed)


class NeverEnds(Walk):
    length = 10**9


class Endless(Walk):
    observation_space = spaces.Dict(road=spaces.Sequence(spaces.Discrete(3)))

    def see(self) -> Any:
        return {"road": tuple(self.np_random.integers(0, 3, 2))}


class NoSpace(Walk):
    observation_space = None


class NoActionSpace(Walk):
    action_space = None


class BadMask(Walk):
    action_space = spaces.Discrete(2)

    def action_masks(self) -> Any:
        return np.zeros(2, np.bool_)


class RaisingMask(Walk):
    action_space = spaces.Discrete(2)

    def action_masks(self) -> Any:
        raise ValueError("no mask today")


class TwoMistakes(Walk):
    def see(self) -> Any:
        return {"body": {"position": "here"}, "gear": f"gear {self.np_random.integers(9)}"}


class HugeInteger(Walk):
    def reward(self) -> Any:
        return 10**400


class RaggedReward(Walk):
    def reward(self) -> Any:
        return [[1.0], [1.0, 2.0]]


class ReadOnlyInfo(Walk):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], MappingProxyType({"speed": 1.0})


class RaisingSpace(Walk):
    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        raise ValueError("no space left")


class RaisesForOtherSeed(Walk):
    first_seed = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        first = RaisesForOtherSeed.first_seed = RaisesForOtherSeed.first_seed or seed
        if self.resets == 4 and seed != first:
            raise ValueError("not this seed")
        self.resets += 1
        return super().reset(seed=seed)

    resets = 0


class Restarting(Walk):
    """Restarts its episodes itself, which emulation refuses."""

    def __new__(cls) -> Any:
        return gymnasium.wrappers.Autoreset(Walk())


FAULTS: list[tuple[type[Walk], str, str, str]] = [
    (WrongShape, "observations", "fail", "got float32 array of shape (3,)"),
    (
        FloatsForWhole,
        "observations",
        "fail",
        "'gear': expected an integer from 0 to 2; got float 1.5",
    ),
    (WiderDtype, "observations", "warn", "'body/position': expected float32; got float64"),
    (
        ListForArray,
        "observations",
        "warn",
        "'body/position': expected float32; got list of 2 items",
    ),
    (MissingKey, "observations", "fail", "without ['gear']"),
    (ExtraKey, "observations", "fail", "unknown keys ['secret']"),
    (OutOfBounds, "bounds", "fail", "'body/position': expected -1.0 to 1.0; got 7.5 at index [1]"),
    (OutOfBounds, "bounds", "fail", "(3 times, first at episode 0, step 3)"),
    (JustOutOfBounds, "bounds", "warn", "'body/position': expected -1.0 to 1.0; got 1.0000001"),
    (OutOfRange, "bounds", "fail", "'gear': expected an integer from 0 to 2; got 3"),
    (
        NanObservation,
        "finite",
        "fail",
        "'body/position': expected finite numbers; got nan at index [1]",
    ),
    (InfiniteObservation, "finite", "fail", "'speed': "),
    (NanReward, "rewards", "fail", "got float nan"),
    (HugeReward, "rewards", "fail", "got float 1e+300"),
    (ArrayReward, "rewards", "fail", "float64 array of shape (1,)"),
    (ScalarArrayReward, "rewards", "warn", "float64 array of shape ()"),
    (TextReward, "rewards", "fail", "str '1.0'"),
    (NoReward, "rewards", "fail", "NoneType None"),
    (IntegerFlags, "flags", "warn", "terminated: expected True or False; got int 0"),
    (NoFlag, "flags", "fail", "terminated: expected True or False; got NoneType None"),
    (TextInfo, "infos", "fail", "expected a dict; got str 'fine'"),
    (FourValues, "step", "fail", "tuple of 4 items"),
    (BareReset, "reset", "fail", "(observation, info); got dict with the keys"),
    (ResetWithoutOptions, "reset", "fail", "unexpected keyword argument 'options'"),
    (Unseeded, "same seed", "fail", "'gear' at"),
    (OneSeed, "other seed", "warn", "seeds 0 and 1 give the same 60 steps"),
    (
        Aliasing,
        "kept observations",
        "warn",
        "'body/position': expected it to stay as it was returned",
    ),
    (WritesAction, "actions", "fail", "wrote into the action"),
    (RaisesInStep, "step", "fail", "ValueError: the wheel came off"),
    (RaisesInStep, "step", "fail", "episode 0, step 6"),
    (ExitsInStep, "step", "fail", "SystemExit: goodbye"),
    (RaisesInReset, "reset", "fail", "ValueError: no road"),
    (RaisesInConstructor, "make", "fail", "ValueError: no wheels"),
    (RaisesInClose, "close", "fail", "ValueError: stuck door"),
    (NeverEnds, "autoreset", "warn", "none did in 60 steps"),
    (Endless, "layout", "fail", "'road': given a space without a maximum length"),
    (NoSpace, "layout", "fail", "observation_space of 'agent_0': "),
    (NoActionSpace, "layout", "fail", "action_space of 'agent_0': "),
    (BadMask, "action masks", "fail", "forbids every choice"),
    (RaisingMask, "action masks", "fail", "no mask today"),
    (Restarting, "autoreset", "fail", "Autoreset"),
    (TwoMistakes, "observations", "fail", "'body/position': expected float32 array of shape (2,)"),
    (TwoMistakes, "observations", "fail", "'gear': expected an integer from 0 to 2; got str"),
    (HugeInteger, "rewards", "fail", "expected a finite number that float32 can hold"),
    (RaggedReward, "rewards", "fail", "got list of 2 items"),
    (ReadOnlyInfo, "infos", "warn", "expected a dict; got mappingproxy"),
    (RaisingSpace, "layout", "fail", "ValueError: no space left"),
    (RaisesForOtherSeed, "other seed", "fail", "a run with seed 1 stopped: "),
]
