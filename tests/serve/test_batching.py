"""Requests that wait together are answered together, each by its own answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from serving import FIVE, PATIENCE, as_client, gated, load_kind

from fugu.export import LoadedPolicy
from fugu.serve import ServeConfig
from fugu.serve.batching import Batcher, Passes
from fugu.serve.json_types import RequestError
from fugu.serve.messages import Answer, Ask, Messages


def asks_of(policy: LoadedPolicy, count: int, **more: Any) -> list[Ask]:
    """Requests of one observation, each another."""
    space, messages = policy.facts.observation.space, Messages(policy.facts, 64)
    space.seed(1)
    sent = [{"observation": as_client(space, space.sample()), **more} for _ in range(count)]
    return [messages.read(json.dumps(each).encode()) for each in sent]


def numbers(policy: LoadedPolicy, answer: Answer) -> tuple[Any, ...]:
    return policy.sampler.to_samples(answer.actions), answer.values, answer.state


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), PATIENCE)

    asyncio.run(limited())


@pytest.mark.parametrize("name", ["mlp", "tree", "own-critic", "lstm", "squashed", "no-critic"])
def test_a_request_is_answered_as_if_it_were_alone(name: str) -> None:
    policy = load_kind(name)
    mixed = [
        {"seed": 3, "greedy": False},
        {"greedy": True},
        {"seed": 4, "greedy": False},
        {"seed": 3, "greedy": True},
        {"seed": 3, "greedy": False},
    ]
    asks = [asks_of(policy, 1 + i, **more)[i] for i, more in enumerate(mixed)]
    together = Passes(policy).answer(asks)
    for ask, answer in zip(asks, together, strict=True):
        (alone,) = Passes(policy).answer([ask])
        assert isinstance(answer, Answer)
        assert isinstance(alone, Answer)
        for one, other in zip(numbers(policy, answer), numbers(policy, alone), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        chance = None if ask.seed is None else np.random.default_rng(ask.seed)
        actions, *_ = policy.act_rows(ask.rows, ask.state, greedy=ask.greedy, random=chance)
        np.testing.assert_array_equal(alone.actions, actions)


def test_what_is_drawn_without_a_seed_differs() -> None:
    policy = load_kind("squashed")
    one, two = Passes(policy).answer(asks_of(policy, 1, greedy=False) * 2)
    assert isinstance(one, Answer)
    assert isinstance(two, Answer)
    assert (one.actions != two.actions).all()


def test_a_request_without_a_finite_answer_harms_no_other() -> None:
    policy, messages = load_kind("mlp"), Messages(load_kind("mlp").facts, 64)
    good = asks_of(policy, 1)[0]
    huge = messages.read(json.dumps({"observations": [FIVE, [3e38, -3e38, 3e38, 1, 1]]}).encode())
    answers = Passes(policy).answer([good, huge, good])
    assert isinstance(answers[0], Answer)
    assert isinstance(answers[1], RequestError)
    assert "observations[1]: expected one like those that the policy was trained on; got" in str(
        answers[1]
    )
    np.testing.assert_array_equal(answers[0].actions, answers[2].actions)  # type: ignore[union-attr]


def test_requests_that_wait_go_together_up_to_the_most() -> None:
    policy, engine = gated()
    asks, notes = asks_of(policy, 9), []

    async def test() -> None:
        cfg = ServeConfig(max_batch=4, max_wait_ms=0)
        batcher = Batcher(policy, cfg, lambda size, seconds: notes.append(size))
        first = batcher.submit(asks[0])
        await asyncio.to_thread(engine.entered.acquire)  # it is under way alone
        rest = [batcher.submit(ask) for ask in asks[1:]]
        assert batcher.waiting == 8
        engine.gate.set()
        answers = await asyncio.gather(first, *rest)
        await batcher.close()
        for ask, answer in zip(asks, answers, strict=True):
            np.testing.assert_array_equal(answer.actions, policy.act_rows(ask.rows)[0])

    run(test)
    assert engine.sizes[:3] == notes == [1, 4, 4]


def test_a_request_waits_for_others_as_long_as_it_may() -> None:
    policy, engine = gated()
    engine.gate.set()
    asks = asks_of(policy, 3)

    async def test() -> None:
        # So long that only the third one can end the wait.
        batcher = Batcher(policy, ServeConfig(max_batch=3, max_wait_ms=1e8), lambda *_: None)
        futures = [batcher.submit(ask) for ask in asks[:2]]
        await asyncio.wait(futures, timeout=0.05)
        assert not any(future.done() for future in futures)
        futures.append(batcher.submit(asks[2]))
        await asyncio.gather(*futures)
        last = batcher.submit(asks[0])
        await batcher.close()  # nothing more can come, so nothing is waited for
        await last

    run(test)
    assert engine.sizes == [3, 1]


def test_more_than_may_wait_are_refused_and_leave_room_when_cancelled() -> None:
    policy, engine = gated()
    asks = asks_of(policy, 8)

    async def test() -> None:
        cfg = ServeConfig(max_batch=2, max_queue=3, max_wait_ms=0)
        batcher = Batcher(policy, cfg, lambda *_: None)
        first = batcher.submit(asks[0])
        await asyncio.to_thread(engine.entered.acquire)
        waiting = [batcher.submit(ask) for ask in asks[1:4]]
        with pytest.raises(
            RequestError, match="at most 3 observations to wait; got 1 more beside 3"
        ):
            batcher.submit(asks[4])
        waiting[1].cancel()
        await asyncio.sleep(0)
        assert batcher.waiting == 2
        late = batcher.submit(asks[5])
        engine.gate.set()
        await asyncio.gather(first, waiting[0], waiting[2], late)
        assert waiting[1].cancelled()
        await batcher.close()
        with pytest.raises(RequestError, match="^queue: "):
            batcher.submit(asks[0])

    run(test)
    assert sum(engine.sizes) == 4  # the cancelled one was never asked


def test_one_that_is_cancelled_under_way_is_forgotten() -> None:
    policy, engine = gated()
    asks = asks_of(policy, 2)

    async def test() -> None:
        batcher = Batcher(policy, ServeConfig(max_wait_ms=0), lambda *_: None)
        first = batcher.submit(asks[0])
        await asyncio.to_thread(engine.entered.acquire)
        first.cancel()
        second = batcher.submit(asks[1])
        engine.gate.set()
        assert await second is not None
        assert first.cancelled()
        await batcher.close()

    run(test)
    assert engine.sizes == [1, 1]


class PickyEngine:
    """Fails for whole batches in which a first number is negative."""

    def __init__(self, policy: LoadedPolicy) -> None:
        self.facts, self._engine = policy.facts, policy.engine

    def forward(self, rows: Any, state: Any) -> Any:
        if (rows[:, 0] < 0).any():
            raise ArithmeticError("negative")
        return self._engine.forward(rows, state)


def test_a_request_that_breaks_a_pass_breaks_no_other() -> None:
    policy = LoadedPolicy(PickyEngine(load_kind("mlp")))
    messages = Messages(policy.facts, 64)
    sent = [[1.0] * 5, [-1.0] * 5, [2.0] * 5]
    asks = [messages.read(json.dumps({"observation": each}).encode()) for each in sent]

    async def test() -> None:
        batcher = Batcher(policy, ServeConfig(max_batch=3, max_wait_ms=1e8), lambda *_: None)
        futures = [batcher.submit(ask) for ask in asks]
        one, bad, two = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(bad, ArithmeticError)
        assert isinstance(one, Answer)
        assert isinstance(two, Answer)
        assert batcher.alive
        await batcher.close()

    run(test)
