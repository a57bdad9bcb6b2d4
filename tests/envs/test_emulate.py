"""Emulation keeps the contract: rows, masks, seeds, order of calls, errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import fugu
from fugu.core.errors import AgentError, EnvError, PackError, SpaceError, UsageError
from fugu.core.seeding import episode_seed
from fugu.envs import Buffers, emulate

from toys import Counter, Script, Turns  # isort: skip


def only(env: Any) -> Buffers:
    (rows,) = env.buffers
    return rows


# ---------------------------------------------------------------------- one agent


@pytest.mark.parametrize("truncates", [False, True])
def test_an_episode_restarts_in_the_step_that_ends_it(truncates: bool) -> None:
    env = emulate(Counter(length=2, truncates=truncates))
    rows = only(env)
    env.reset(seed=1)
    assert rows.observations.tolist() == [[1, 0]]
    assert rows.live.tolist() == [True]
    env.step()
    assert rows.observations.tolist() == [[1, 1]]
    assert not env.infos
    env.step()
    assert rows.rewards.tolist() == [2.0]
    assert rows.terminations.tolist() == [not truncates]
    assert rows.truncations.tolist() == [truncates]
    assert rows.final.tolist() == [[1, 2]]
    assert rows.observations.tolist() == [[2, 0]]  # the next episode's first
    assert rows.live.tolist() == [True]
    assert env.infos == ({"episode_return": 3.0, "episode_length": 2},)
    env.step()
    assert rows.rewards.tolist() == [1.0]
    assert not rows.terminations.any()
    assert not rows.truncations.any()
    assert not env.infos


def test_every_episode_has_a_seed_of_its_own_and_options_reach_it() -> None:
    inner = Counter(length=1)
    env = emulate(inner, reset_options={"level": 1})
    env.reset(seed=7, options={"start": "left"})
    env.step()
    env.step()
    assert inner.resets == [
        (episode_seed(7, 0), {"level": 1, "start": "left"}),
        (episode_seed(7, 1), {"level": 1}),
        (episode_seed(7, 2), {"level": 1}),
    ]
    assert len({seed for seed, _ in inner.resets}) == 3


def test_a_reset_without_a_seed_goes_on_and_one_with_it_begins_again() -> None:
    inner = Counter()
    env = emulate(inner)
    env.reset()
    env.reset(seed=3)
    env.reset()
    env.reset(seed=3)
    seeds = [seed for seed, _ in inner.resets]
    assert seeds[1:] == [episode_seed(3, 0), episode_seed(3, 1), episode_seed(3, 0)]
    assert seeds[0] is not None


def test_seeding_first_gives_the_seed_as_it_is_and_only_once() -> None:
    inner = Counter(length=1)
    env = emulate(inner, seeding="first")
    env.reset(seed=42)
    env.step()
    env.reset()
    assert [seed for seed, _ in inner.resets] == [42, None, None]


def test_it_writes_into_the_buffers_it_is_bound_to() -> None:
    env = emulate(Counter())
    rows = Buffers.allocate(env.groups[0])
    rows.observations[:] = np.nan
    env.bind(rows)
    env.reset(seed=0)
    rows.actions[:] = 3
    env.step()
    assert only(env) is rows
    assert rows.observations.tolist() == [[1, 1]]
    assert rows.valid.all()


def test_actions_are_values_of_the_action_space_and_never_views() -> None:
    inner = Counter(length=9, action=spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2, 2))))
    env = emulate(inner)
    env.reset(seed=0)
    for number in (1, 2):
        value = {"a": number, "b": np.full((2, 2), number / 2, np.float32)}
        env.action_layout.pack(value, only(env).actions[0])
        env.step()
    assert [action["a"] for action in inner.actions] == [1, 2]
    assert [action["b"][0, 0] for action in inner.actions] == [0.5, 1.0]
    assert all(action in inner.action_space for action in inner.actions)


def test_continuous_actions_are_clipped_only_on_request() -> None:
    box = spaces.Box(-1, 1, (2,))
    for clip in (False, True):
        inner = Counter(action=box)
        env = emulate(inner, clip_actions=clip)
        env.reset(seed=0)
        only(env).actions[:] = [[5, -5]]
        if clip:
            env.step()
            assert inner.actions[0].tolist() == [1, -1]
            assert only(env).actions.tolist() == [[5, -5]]  # the caller's row is not touched
            only(env).actions[:] = np.nan
        with pytest.raises(PackError, match="5.0 at index|not a number"):
            env.step()


def test_all_infos_come_as_they_are_on_request() -> None:
    inner = Counter(length=2)
    env = emulate(inner, infos="all")
    inner.info = {"level": "first"}
    env.reset(seed=0)
    assert env.infos == ({"level": "first"},)
    inner.info = {}
    env.step()
    assert not env.infos
    inner.info = {"x": [1, 2]}
    env.step()
    assert env.infos == ({"x": [1, 2], "final_info": {"x": [1, 2]}},)
    env.step()
    assert env.infos == ({"x": [1, 2]},)
    inner.info = {}
    env.step()
    assert env.infos == ({"final_info": {}},)
    with pytest.raises(UsageError, match="many agents"):
        emulate(Turns(), infos="all")
    with pytest.raises(UsageError, match="given 'some'"):
        emulate(Counter(), infos="some")  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [-1, 4, 2**40])
def test_an_action_out_of_range_is_refused(action: int) -> None:
    env = emulate(Counter())
    env.reset(seed=5)
    only(env).actions[:] = action
    with pytest.raises(PackError, match=f"given {action}; allowed: an integer from 0 to 3") as e:
        env.step()
    assert "seed 5, episode 0, step 1" in e.value.__notes__[0]


def test_out_of_order_calls_are_refused() -> None:
    inner = Counter()
    env = emulate(inner)
    with pytest.raises(UsageError, match="reset"):
        env.step()
    env.reset(seed=0)
    env.close()
    env.close()
    assert inner.closed == 1
    for call in (env.step, env.reset, env.render):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_failed_reset_leaves_no_half_open_episode() -> None:
    inner = Counter()
    env = emulate(inner)
    with pytest.raises(UsageError, match="'seven'"):
        env.reset(seed="seven")
    with pytest.raises(UsageError, match="before reset"):
        env.step()


def test_binding_checks_every_buffer() -> None:
    env = emulate(Counter())
    rows = Buffers.allocate(env.groups[0])
    with pytest.raises(UsageError, match="given 2 buffers; allowed: 1"):
        env.bind(rows, rows)
    wrong = {**rows.__dict__, "rewards": np.zeros(1)}
    with pytest.raises(UsageError, match="given rewards as float64.*allowed: contiguous float32"):
        env.bind(Buffers(**wrong))


class Old(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, False, {}


class Unreal(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), np.zeros(2), False, False, {}


class Nothing(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), None, False, False, {}


class Talks(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, False, False, "info"


class Raises(Counter):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("inside")


@pytest.mark.parametrize(
    ("inner", "error", "message"),
    [
        (Old(), EnvError, "given 4 values; allowed"),
        (Unreal(), EnvError, "reward: given array"),
        (Nothing(), EnvError, "reward: given None"),
        (Talks(), EnvError, "info: given 'info'"),
        (Raises(), ZeroDivisionError, "inside"),
        (Counter(observation=spaces.Discrete(3)), PackError, "allowed: an integer from 0 to 2"),
    ],
)
def test_an_environment_that_breaks_its_word_is_named(
    inner: Any, error: type[Exception], message: str
) -> None:
    env = emulate(inner)
    with pytest.raises(error, match=message) as caught:  # noqa: PT012
        env.reset(seed=5)
        env.step()
    assert "seed 5" in caught.value.__notes__[0]
    assert type(inner).__name__ in caught.value.__notes__[0]


def test_what_is_no_environment_is_refused() -> None:
    for thing, message in [
        (3, "given 3 of type builtins.int; allowed: a gymnasium.Env"),
        ("CartPole-v1", r"gymnasium.make\('CartPole-v1'\)"),
        (gymnasium.make_vec("CartPole-v1", 2), "Give one copy"),
        (emulate(Counter()), "already"),
        (lambda: 5, "given 5"),
    ]:
        with pytest.raises(UsageError, match=message):
            emulate(thing)
    with pytest.raises(UsageError, match="Autoreset"):
        emulate(gymnasium.wrappers.Autoreset(gymnasium.make("CartPole-v1")))
    with pytest.raises(SpaceError, match="no possible_agents"):
        emulate(Script([], [], []))
    with pytest.raises(UsageError, match="seeding"):
        emulate(Counter(), seeding="never")  # type: ignore[arg-type]


def test_factories_and_classes_are_called() -> None:
    assert isinstance(emulate(Counter).source, Counter)
    assert emulate(lambda: Counter(length=9)).source.length == 9
    assert fugu.emulate is emulate


# ---------------------------------------------------------------------- masks


class Masked(Counter):
    """Gives its mask by one of the three ways."""

    def __init__(self, how: str, masks: list[Any], **spaces_: Any) -> None:
        super().__init__(length=99, **spaces_)
        self.how, self.masks = how, masks
        if how == "observation":
            self.observation_space = spaces.Dict(
                action_mask=spaces.Box(0, 1, (4,), np.int8), x=spaces.Discrete(100)
            )
        if how == "method":
            self.action_masks = lambda: self.masks[self.count]

    def observe(self) -> Any:
        self.info = {"action_mask": self.masks[self.count]} if self.how == "info" else {}
        if self.how == "observation":
            return {"action_mask": self.masks[self.count], "x": self.count}
        return super().observe()


@pytest.mark.parametrize("how", ["info", "observation", "method"])
def test_masks_are_found_in_three_places(how: str) -> None:
    masks = [np.int8([1, 0, 0, 1]), np.int8([0, 1, 1, 0]), np.int8([1, 1, 1, 1])]
    env = emulate(gymnasium.wrappers.TimeLimit(Masked(how, masks), 50))
    env.reset(seed=0)
    for mask in masks:
        assert only(env).action_masks.tolist() == [mask.astype(bool).tolist()]
        if mask is not masks[-1]:
            env.step()


def test_without_a_mask_everything_is_allowed_again() -> None:
    env = emulate(Masked("info", [np.int8([1, 0, 0, 1]), None]))
    env.reset(seed=0)
    env.step()
    assert only(env).action_masks.all()


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (spaces.MultiDiscrete([2, 3]), (np.int8([1, 0]), np.int8([0, 1, 1])), [1, 0, 0, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
        (spaces.MultiBinary(2), np.int8([1, 1, 1, 0]), [1, 1, 1, 0]),
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (3,)), c=spaces.Discrete(2)),
            {"a": np.int8([0, 1]), "c": np.int8([1, 0])},
            [0, 1, 1, 0],
        ),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 2]))),
            (None, (np.int8([0, 1]), np.int8([1, 0]))),
            [1, 1, 0, 1, 1, 0],
        ),
    ],
)
def test_masks_of_any_action_space(space: Any, mask: Any, expected: list[int]) -> None:
    env = emulate(Masked("info", [mask], action=space))
    env.reset(seed=0)
    assert only(env).action_masks.astype(int).tolist() == [expected]


@pytest.mark.parametrize(
    ("mask", "message"),
    [(np.ones(3), "given 3 entries; allowed: 4"), (np.zeros(4), "forbids every choice")],
)
def test_a_mask_that_cannot_be_is_refused(mask: Any, message: str) -> None:
    env = emulate(Masked("info", [mask]))
    with pytest.raises(EnvError, match=message):
        env.reset(seed=0)


def test_continuous_actions_have_no_mask() -> None:
    env = emulate(Counter(action=spaces.Box(-1, 1, (2,))))
    assert only(env).action_masks.shape == (1, 0)


# ---------------------------------------------------------------------- many agents


def columns(env: Any, name: str) -> dict[str, Any]:
    found = {}
    for group, rows in zip(env.groups, env.buffers, strict=True):
        for agent, value in zip(group.agents, getattr(rows, name).tolist(), strict=True):
            found[agent] = value[0] if isinstance(value, list) else value
    return found


def test_agents_die_join_late_and_are_padded() -> None:
    """a0 dies on the first step, a1 joins there and is cut off on the third, with the rest."""
    script = [
        {"a0": "terminated", "a1": None, "a2": None},
        {"a1": None, "a2": None},
        {"a1": "truncated", "a2": "terminated"},
    ]
    inner = Script(["a0", "a1", "a2", "a3"], ["a0", "a2"], script)
    env = emulate(inner)
    env.reset(seed=0)
    assert columns(env, "live") == {"a0": True, "a1": False, "a2": True, "a3": False}
    assert columns(env, "observations") == {"a0": 10, "a1": 0, "a2": 10, "a3": 0}

    env.step()
    assert set(inner.seen[0]) == {"a0", "a2"}
    assert columns(env, "live") == {"a0": False, "a1": True, "a2": True, "a3": False}
    assert columns(env, "observations") == {"a0": 0, "a1": 11, "a2": 11, "a3": 0}
    assert columns(env, "rewards") == {"a0": 11, "a1": 0, "a2": 11, "a3": 0}
    assert columns(env, "terminations") == {"a0": True, "a1": False, "a2": False, "a3": False}
    assert columns(env, "final")["a0"] == 11
    assert env.infos == [{"agent": "a0", "episode_return": 11, "episode_length": 1, "time": 11}]

    env.step()
    assert set(inner.seen[1]) == {"a1", "a2"}
    assert not any(columns(env, "terminations").values())
    assert columns(env, "rewards") == {"a0": 0, "a1": 12, "a2": 12, "a3": 0}
    assert not env.infos

    env.step()  # a mix of the two ends is an end as well
    assert columns(env, "terminations") == {"a0": False, "a1": False, "a2": True, "a3": False}
    assert columns(env, "truncations") == {"a0": False, "a1": True, "a2": False, "a3": False}
    assert columns(env, "final") == {"a0": 11, "a1": 13, "a2": 13, "a3": 0}
    assert columns(env, "live") == {"a0": True, "a1": False, "a2": True, "a3": False}
    assert columns(env, "observations") == {"a0": 10, "a1": 0, "a2": 10, "a3": 0}
    assert [info["agent"] for info in env.infos] == ["a1", "a2"]
    assert [info["episode_length"] for info in env.infos] == [2, 3]


def test_agents_with_different_spaces_are_in_different_groups() -> None:
    inner = Script(["a_0", "b_0", "a_1"], ["a_0", "b_0", "a_1"], [{"a_0": None, "b_0": None}] * 3)
    env = emulate(inner)
    assert [(g.name, g.agents) for g in env.groups] == [("a", ("a_0", "a_1")), ("b", ("b_0",))]
    assert env.num_agents == 3
    assert [g.observation_layout.dtype for g in env.groups] == [np.float32, np.int64]
    with pytest.raises(UsageError, match=r"2 groups of agents, \['a', 'b'\]"):
        _ = env.observation_layout
    env.reset(seed=0)
    env.buffers[1].actions[:] = 0.5
    with pytest.raises(EnvError, match="no 'a_1' in env.agents any more"):
        env.step()
    assert inner.seen[0]["b_0"].tolist() == [0.5, 0.5]


def test_agents_are_grouped_by_name_on_request() -> None:
    env = emulate(
        Script(["a0", "a1", "a2"], ["a0"], []), group_by=lambda agent: f"team{agent > 'a1'}"
    )
    assert [(g.name, g.agents) for g in env.groups] == [
        ("teamFalse", ("a0", "a1")),
        ("teamTrue", ("a2",)),
    ]


def test_an_agent_that_is_over_and_lingers_is_not_live_until_it_is_back() -> None:
    class Lingering(Script):
        def step(self, actions: dict[str, Any]) -> Any:
            result = super().step(actions)
            self.agents = ["a0", "a1"]
            return result

    script = [{"a0": "terminated", "a1": None}] * 2 + [{"a0": None, "a1": None}]
    env = emulate(Lingering(["a0", "a1"], ["a0", "a1"], script))
    env.reset(seed=0)
    lives, ends = [], []
    for _ in range(3):
        env.step()
        lives.append(columns(env, "live")["a0"])
        ends.append(columns(env, "terminations")["a0"])
    assert lives == [False, False, True]
    assert ends == [True, False, False]


def test_limits_by_path_may_belong_to_one_group_only() -> None:
    class Listening(Script):
        def observation_space(self, agent: str) -> Any:
            heard = spaces.Sequence(spaces.Discrete(3))
            return spaces.Dict(heard=heard) if agent[0] == "a" else spaces.Discrete(100)

    env = emulate(Listening(["a0", "b0"], ["b0"], []), limits={"heard": 4})
    assert [len(group.observation_layout.leaves) for group in env.groups] == [3, 1]
    with pytest.raises(SpaceError, match=r"given \['herd'\]"):
        emulate(Listening(["a0", "b0"], ["b0"], []), limits={"heard": 4, "herd": 2})


def test_an_unknown_agent_is_refused() -> None:
    env = emulate(Script(["a0"], ["a0"], [{"a0": None, "a9": None}]))
    env.reset(seed=0)
    with pytest.raises(AgentError, match=r"given 'a9'; allowed: the possible_agents \['a0'\]"):
        env.step()


def test_turns_make_one_row_live_and_gather_rewards_between_them() -> None:
    env = emulate(Turns(length=3))
    env.reset(seed=0)
    assert columns(env, "live") == {"white": True, "black": False}
    assert only(env).action_masks[0].tolist() == [True, False, False]

    env.step()  # white acts: +1 for it, -10 for black, who is told when its turn comes: now
    assert columns(env, "live") == {"white": False, "black": True}
    assert columns(env, "rewards") == {"white": 0, "black": -10}
    assert only(env).action_masks[1].tolist() == [True, True, False]

    env.step()  # black acts; white hears of its own +1 and of black's -10
    assert columns(env, "live") == {"white": True, "black": False}
    assert columns(env, "rewards") == {"white": -9, "black": 0}

    env.step()  # white acts and the game ends for both, with all that is due to each
    assert columns(env, "rewards") == {"white": 1, "black": -9}
    assert columns(env, "terminations") == {"white": True, "black": True}
    assert columns(env, "live") == {"white": True, "black": False}  # the next game
    unpack = env.observation_layout.unpack
    assert [unpack(row)["observation"] for row in only(env).final] == [3, 3]
    assert [unpack(row)["observation"] for row in only(env).observations] == [0, 0]
    assert sorted((i["agent"], i["episode_return"], i["episode_length"]) for i in env.infos) == [
        ("black", -19.0, 1),
        ("white", -8.0, 2),
    ]
    env.step()
    assert columns(env, "rewards") == {"white": 0, "black": -10}
    assert not any(columns(env, "terminations").values())


def test_an_agent_that_never_leaves_is_an_error_and_no_hang() -> None:
    class Stuck(Turns):
        def step(self, action: Any) -> None:
            if action is not None:
                super().step(action)

    env = emulate(Stuck(length=1))
    env.reset(seed=0)
    with pytest.raises(EnvError, match="allowed: agents that leave"):
        env.step()


def test_the_same_seed_and_actions_give_the_same_bytes_and_another_seed_others() -> None:
    def play(seed: int) -> bytes:
        env = emulate(gymnasium.make("CartPole-v1"))
        env.reset(seed)
        rng, rows, out = np.random.default_rng(0), only(env), b""
        for action in rng.integers(0, 2, 200):
            rows.actions[:] = action
            env.step()
            out += rows.observations.tobytes() + rows.final.tobytes() + rows.rewards.tobytes()
        return out

    assert play(1) == play(1)
    assert play(1) != play(2)
