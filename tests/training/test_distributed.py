"""Shares of ranks, without starting any: what each of them takes of a run's settings and seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fugu
from fugu.algos.algorithm import RunContext
from fugu.algos.settings import read_config
from fugu.core.errors import UsageError
from fugu.core.ranks import Ranks
from fugu.core.seeding import derive
from fugu.training.distributed import count_copies, share_of
from fugu.training.inputs import RunInputs


def ranks_of(size: int, rank: int = 0) -> Ranks:
    ranks = Ranks()
    ranks.size, ranks.rank = size, rank
    return ranks


def config(**sections: Any) -> Any:
    return read_config({"env": "cartpole", **sections})


def test_each_rank_takes_its_share_of_copies_batches_and_workers() -> None:
    vec = {"num_envs": 12, "batch_size": 6, "num_workers": 4}
    cfg = config(vec=vec, train={"rows": 8, "horizon": 16})
    share = share_of(cfg, RunInputs(ranks=ranks_of(2)))
    assert (share.vec.num_envs, share.vec.batch_size, share.vec.num_workers) == (6, 3, 2)
    assert (share.train.rows, share.train.horizon) == (4, 16)
    assert share_of(cfg, RunInputs()) is cfg


def test_a_rank_has_one_worker_at_least_and_none_if_none_were_asked_for() -> None:
    few = config(vec={"num_envs": 4, "num_workers": 1})
    assert share_of(few, RunInputs(ranks=ranks_of(2))).vec.num_workers == 1
    unsaid = config(vec={"num_envs": 4})
    assert share_of(unsaid, RunInputs(ranks=ranks_of(2))).vec.num_workers is None


@pytest.mark.parametrize(("size", "group_size", "copies"), [(1, 1, 64), (3, 1, 66), (5, 4, 80)])
def test_copies_make_64_agents_and_as_many_more_as_ranks_need(
    size: int, group_size: int, copies: int
) -> None:
    cfg = config(vec={"num_envs": 0, "group_size": group_size})
    assert count_copies(cfg, RunInputs(ranks=ranks_of(size))) == copies
    assert count_copies(config(vec={"num_envs": 7}), RunInputs(ranks=ranks_of(size))) == 7


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"vec": {"num_envs": 5}}, "vec.num_envs: given 5 with 2 ranks; allowed: multiples of 2"),
        ({"vec": {"num_envs": 6, "group_size": 2}}, "multiples of 4"),
        ({"vec": {"num_envs": 4}, "train": {"rows": 3}}, "train.rows: given 3"),
        ({"vec": {"num_envs": 4}, "train": {"best_episodes": 2}}, "train.best_episodes: given 2"),
        ({"vec": {"num_envs": 4}, "algo": "dreamer"}, "nproc: given 2 with dreamer"),
    ],
)
def test_what_ranks_cannot_divide_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        share_of(config(**sections), RunInputs(ranks=ranks_of(2)))


def test_copies_of_all_ranks_have_the_seeds_of_one_process() -> None:
    with fugu.make("cartpole", 4) as vec:
        cfg = config(vec={"num_envs": 4, "group_size": 2})

        def seeds(ranks: Ranks) -> Any:
            return RunContext(cfg, vec, torch.device("cpu"), ranks=ranks).reset_seeds(9)

        assert seeds(ranks_of(1)) == 9
        found = [seed for rank in (0, 1) for seed in seeds(ranks_of(2, rank))]
    assert found == [derive(9, number) for number in (0, 0, 1, 1, 2, 2, 3, 3)]
