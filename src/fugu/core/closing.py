"""What is closed when a `with` block ends."""

from __future__ import annotations

from typing import Self


class Closing:
    """Its `close` is called when a `with` block that has it ends, well or not."""

    def close(self) -> object:
        """Let go of whatever it holds; once more does nothing."""
        raise NotImplementedError("close()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
