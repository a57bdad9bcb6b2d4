"""Objects that a `with` block closes, and a `close` that may hang."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from typing import Self

log = logging.getLogger("fugu")


class Closing:
    """Base of classes whose `close` is called at the end of a `with` block.

    A fork of the process that entered the block does not call it, since the resources are still
    its parent's.
    """

    _entered_in = 0  # the process that entered the block

    def close(self) -> object:
        """Release all resources; a second call does nothing."""
        raise NotImplementedError("close()")

    def __enter__(self) -> Self:
        self._entered_in = os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        if self._entered_in == os.getpid():
            self.close()


def close_within(closing: Closing, seconds: float) -> bool:
    """Call `close` in a thread, raise what it raises, and return whether it returned in time.

    A `close` that hangs is logged and left alone: its thread ends with the process.
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
