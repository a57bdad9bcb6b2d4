"""What is closed when a `with` block ends, and closing what may hang."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from typing import Self

log = logging.getLogger("fugu")


class Closing:
    """Its `close` is called when a `with` block that has it ends, well or not.

    A fork of the process that entered the block closes nothing when it leaves it: what `close`
    ends or writes is still its parent's.
    """

    _entered_in = 0  # the process that entered the block

    def close(self) -> object:
        """Let go of whatever it holds; once more does nothing."""
        raise NotImplementedError("close()")

    def __enter__(self) -> Self:
        self._entered_in = os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        if self._entered_in == os.getpid():
            self.close()


def close_within(closing: Closing, seconds: float) -> bool:
    """Close something in a thread of its own and return whether that ended in time.

    A `close` that hangs is logged and left alone: its thread ends with the process.

    Raises:
        BaseException: What `close` raised.
    """
    raised: list[BaseException] = []

    def close() -> None:
        try:
            closing.close()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=close, name="fugu-close", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if thread.is_alive():
        frame = sys._current_frames().get(thread.ident or -1)
        where = "".join(traceback.format_stack(frame)) if frame else ""
        log.warning("close() of %r did not return within %g s:\n%s", closing, seconds, where)
    return not thread.is_alive()
