"""Times and signals of a trainer, and why the native core does not learn some policies."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium import spaces

from fugu.algos.native_backend import find_obstacle
from fugu.core.ranks import Ranks
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.spaces import Layout
from fugu.training import trainer as module
from fugu.training.config import resolve_config
from fugu.training.trainer import Trainer, stops_on_signals


def fake_trainer(size: int) -> Any:
    ranks = Ranks()
    ranks.size = size
    return SimpleNamespace(stopping=False, ranks=ranks)


@pytest.mark.parametrize("size", [1, 2])
def test_a_second_signal_is_the_callers_own_unless_there_are_several_ranks(size: int) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    mine = signal.getsignal(signal.SIGUSR1)
    try:
        running = fake_trainer(size)
        with stops_on_signals(running) as noted:
            assert not running.stopping
            signal.raise_signal(signal.SIGUSR1)
            assert running.stopping
            assert (noted, came) == ([signal.SIGUSR1], [])
            signal.raise_signal(signal.SIGUSR1)
            assert len(noted) == size
            assert len(came) == 2 - size
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_leave_signals_alone() -> None:
    handlers: list[Any] = []

    def run() -> None:
        with stops_on_signals(fake_trainer(1)) as noted:
            handlers.extend([signal.getsignal(signal.SIGTERM), noted])

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before, []]


def test_rates_and_phases_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 103.0, 104.0])  # before an update, when its rows are there, behind it
    found = Trainer(resolve_config("bandit", overrides={"vec": {"num_envs": 8}}))
    try:
        found.algorithm.start(0)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        progress = found.update()
    finally:
        monkeypatch.undo()
        found.close()
    assert progress.phases == {"collect": 3.0, "learn": 1.0}
    assert progress.steps == found.steps > 0
    assert progress.steps_per_second == found.steps / 4.0


def policy(action: gymnasium.Space[Any] | None = None, **settings: Any) -> Policy:
    action_layout = Layout.of(action or spaces.Discrete(2))
    group = AgentGroup("agent", (0,), Layout.of(spaces.Box(-1, 1, (3,))), action_layout)
    return make_policy(group, PolicyConfig(hidden_size=8, **settings))


class Other(Policy):
    """A policy of somebody's own."""


def test_obstacles_of_the_native_core_are_named() -> None:
    cpu = torch.device("cpu")
    plain = policy()
    assert find_obstacle(plain, cpu, False) is None
    assert "on meta" in str(find_obstacle(plain, torch.device("meta"), False))
    assert "train.compile" in str(find_obstacle(plain, cpu, True))
    assert "train.microbatch is 5" in str(find_obstacle(plain, cpu, False, 5))
    squashed = policy(spaces.Box(-1, 1, (2,)), continuous="tanh")
    assert "squashed by a tanh" in str(find_obstacle(squashed, cpu, False))
    hooked = policy()
    next(hooked.children()).register_forward_hook(lambda *_: None)
    assert "somebody changed" in str(find_obstacle(hooked, cpu, False))
    changed = policy()
    layer = next(changed.children())
    layer.forward = layer.forward  # type: ignore[method-assign]
    assert "somebody changed" in str(find_obstacle(changed, cpu, False))
    fixed = policy()
    list(fixed.parameters())[-1].requires_grad_(False)
    assert "not learned" in str(find_obstacle(fixed, cpu, False))
    other = policy()
    other.__class__ = Other
    assert "it is a Other" in str(find_obstacle(other, cpu, False))
