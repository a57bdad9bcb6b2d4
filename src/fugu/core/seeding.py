"""One tree of seeds: every stream's seed is a pure function of its path in the tree.

The hash is SplitMix64's finalizer, chained over the path: a few integer operations, the same in
Python and in C, and good enough that neighboring paths share nothing.
"""

from __future__ import annotations

import secrets

_MASK = (1 << 64) - 1


def _mix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def derive(seed: int, *path: int) -> int:
    """Return the 64-bit seed at `path` below `seed`.

    >>> derive(1, 0) == derive(1, 0), derive(1, 0) == derive(1, 1), derive(1) == derive(1, 0)
    (True, False, False)
    """
    word = _mix(seed & _MASK)
    for step in path:
        # Multiplied, so that exchanging a seed and a step changes the result.
        word = _mix((word * 0xD1342543DE82EF95 + step) & _MASK)
    return word


def episode_seed(seed: int, episode: int) -> int:
    """Return the reset seed of one episode of an environment whose own seed is `seed`.

    31 bits, since many environments hand their seed to a 32-bit signed generator.

    >>> 0 <= episode_seed(7, 3) < 2**31
    True
    """
    return derive(seed, episode) >> 33


def fresh_seed() -> int:
    """Return a random seed from the operating system."""
    return secrets.randbits(63)
