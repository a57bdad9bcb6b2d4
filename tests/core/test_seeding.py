"""One tree of seeds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fugu.core.seeding import derive, episode_seed, fresh_seed

words = st.integers(0, 2**64 - 1)


def test_the_hash_is_splitmix64() -> None:
    """Its published sequence from state 0 and from 1234567: the C side must give the same."""
    assert derive(0) == 0xE220A8397B1DCDAF
    assert derive(1234567) == 6457827717110365317


@given(words, words, words)
def test_a_seed_depends_on_its_whole_path(seed: int, a: int, b: int) -> None:
    assert derive(seed, a, b) == derive(seed, a, b)
    assert 0 <= derive(seed, a, b) < 2**64
    if a != b:
        assert derive(seed, a) != derive(seed, b)
        assert derive(seed, a, b) != derive(seed, b, a)
        assert derive(a, seed) != derive(b, seed)
        assert derive(a, b) != derive(b, a)


def test_neighbours_share_nothing() -> None:
    seeds = {derive(s, e, k) for s in range(20) for e in range(20) for k in range(20)}
    assert len(seeds) == 8_000
    ones = [bin(derive(0, i) ^ derive(0, i + 1)).count("1") for i in range(1_000)]
    assert 31 < sum(ones) / len(ones) < 33


@given(words, st.integers(0, 2**40))
def test_episode_seeds_fit_any_generator(seed: int, episode: int) -> None:
    assert 0 <= episode_seed(seed, episode) < 2**31


def test_fresh_seeds_differ() -> None:
    assert fresh_seed() != fresh_seed()
