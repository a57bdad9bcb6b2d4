"""Closing: in time, with an error, never, and in forks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from fugu.core.closing import Closing, close_within


class Door(Closing):
    def __init__(self, deed: str) -> None:
        self.deed, self.closed = deed, False

    def close(self) -> None:
        if self.deed == "raise":
            raise ZeroDivisionError("it sticks")
        if self.deed == "hang":
            threading.Event().wait(20)
        self.closed = True


def test_a_close_returns_in_time_raises_or_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    assert close_within(Door("well"), 10)
    with pytest.raises(ZeroDivisionError, match="it sticks"):
        close_within(Door("raise"), 10)
    with caplog.at_level(logging.WARNING):
        assert not close_within(Door("hang"), 0.05)
    assert "did not return within 0.05 s" in caplog.text
    assert "in close" in caplog.text  # where it hangs


def test_a_with_block_closes_at_its_end() -> None:
    with Door("well") as door:
        assert not door.closed
    assert door.closed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_that_leaves_a_with_block_closes_nothing() -> None:
    script = """
        import os, sys
        from fugu.core.closing import Closing
        class Door(Closing):
            def close(self):
                print("closed by", "its owner" if os.getpid() == owner else "a fork", flush=True)
        owner = os.getpid()
        with Door():
            child = os.fork()
            if child == 0:
                sys.exit()
            os.waitpid(child, 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "closed by its owner\n"
