"""Calls that end in time or are given up: a socket's own timeout ends no answer that drips."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def run_within(seconds: float, calls: Sequence[Callable[[], T]], threads: int = 1) -> list[T]:
    """What the calls return, made by so many threads; the first error that one raises.

    Raises:
        TimeoutError: Not all of them have ended in that time. Those under way go on in threads
            that keep no process from ending; no other begins.
    """
    end = time.monotonic() + seconds
    todo = iter(range(len(calls)))
    taking, stopped = threading.Lock(), threading.Event()
    done: queue.SimpleQueue[tuple[int, T] | BaseException] = queue.SimpleQueue()

    def work() -> None:
        while not stopped.is_set():
            with taking:
                place = next(todo, None)
            if place is None:
                return
            try:
                done.put((place, calls[place]()))
            except BaseException as error:
                done.put(error)

    for _ in range(min(threads, len(calls))):
        threading.Thread(target=work, daemon=True, name="fugu-memory-call").start()
    results: dict[int, T] = {}
    try:
        while len(results) < len(calls):
            answer = done.get(timeout=max(0.0, end - time.monotonic()))
            if isinstance(answer, BaseException):
                raise answer
            results[answer[0]] = answer[1]
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    finally:
        stopped.set()
    return [results[place] for place in range(len(calls))]
