"""Wrappers that mend what keeps an environment from the contract."""

from __future__ import annotations

from typing import Any

import gymnasium


class SeededNetHack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """NetHack and MiniHack with `reset(seed=...)`, which NLE 1.3 accepts and does not use.

    It also turns off NetHack's own reseeding in the middle of a game, so that a seed and the
    actions decide everything.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, with the seed for both of NetHack's generators."""
        if seed is not None:
            game: Any = self.unwrapped
            game.seed(core=seed, disp=seed, reseed=False)
        return self.env.reset(seed=seed, options=options)
