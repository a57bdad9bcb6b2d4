"""Several ranks learn what one would, agree on when to stop, and never wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_cases import ALIKE, EQUAL, run

from fugu.core.errors import UsageError
from fugu.core.ranks import SINGLE_PROCESS, Ranks, moments_of
from fugu.store.checkpoint import Checkpoint
from fugu.training.config import resolve_config
from fugu.training.distributed import (
    TIMEOUT,
    check_shares,
    gather_checkpoint,
    hand_out_checkpoint,
    num_ranks,
    timeout,
)

pytestmark = pytest.mark.timeout(900)
Arrays = dict[str, np.ndarray[Any, Any]]
TOLERANCE: dict[str, float] = {"rtol": 1e-4, "atol": 2e-6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks wrote."""
    found = tmp_path_factory.mktemp("ranks")
    program = str(Path(__file__).with_name("rank_cases.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", program, str(found)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=800, check=False
    )
    assert done.returncode == 0
    return found


def read(folder: Path, name: str, rank: int) -> Arrays:
    with np.load(folder / f"{name}.{rank}.npz") as arrays:
        return dict(arrays)


def said(folder: Path, rank: int) -> dict[str, str]:
    lines = (folder / f"said.{rank}.txt").read_text().splitlines()
    return dict(line.split("|", 1) for line in lines)


@pytest.mark.parametrize("name", EQUAL)
def test_two_ranks_with_half_the_batch_each_equal_one_with_all(name: str, folder: Path) -> None:
    one, two = run(EQUAL[name]), read(folder, name, 0)
    assert one["names"].tolist() == two["names"].tolist()
    assert one["told"].shape == two["told"].shape
    np.testing.assert_allclose(two["told"], one["told"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(two["weights"], one["weights"], **TOLERANCE)


@pytest.mark.parametrize("name", [*EQUAL, *ALIKE])
def test_ranks_have_the_same_weights_to_the_last_bit(name: str, folder: Path) -> None:
    first, second = read(folder, name, 0), read(folder, name, 1)
    assert (first["weights"] == second["weights"]).all()
    np.testing.assert_array_equal(first["told"], second["told"])
    assert np.isfinite(first["weights"]).all()


def test_half_the_batch_alone_is_something_else(folder: Path) -> None:
    """What the comparison above would show if ranks did not learn together."""
    half = run(EQUAL["mlp"], vec={"num_envs": 8})
    far = np.abs(half["weights"] - read(folder, "mlp", 0)["weights"]).max()
    assert far > 100 * TOLERANCE["atol"]


def test_total_steps_are_those_of_all_ranks(folder: Path) -> None:
    told = read(folder, "mlp", 1)
    column = told["names"].tolist().index("steps")
    last = told["told"][-1, column]
    assert EQUAL["mlp"]["train"]["total_steps"] <= last <= 5 * 256 + 32


def test_what_one_rank_meets_all_agree_on(folder: Path) -> None:
    for rank in (0, 1):
        found = said(folder, rank)
        assert found["stop"].startswith("stopped ")
        assert found["diverge"].startswith("DivergedError")
        assert found["fall silent"].startswith("RankLostError"), found["fall silent"]
    assert said(folder, 0)["stop"] == said(folder, 1)["stop"]
    assert "of another rank" in said(folder, 0)["diverge"]
    assert "silent for 3 s" in said(folder, 0)["fall silent"]


def test_values_pass_between_the_first_rank_and_the_others(folder: Path) -> None:
    assert said(folder, 0)["exchanged"] == "[0, 1] a [1, 2] 1.5"
    assert said(folder, 1)["exchanged"] == "[] b [1, 2] 1.5"


def test_what_cannot_be_divided_is_said(folder: Path) -> None:
    found = said(folder, 1)
    assert "vec.num_envs: given 3 with 2 ranks" in found["odd copies"]
    assert "train.best_episodes: given 2" in found["best episodes"]
    assert "nproc: given 2 with dreamer" in found["dreamer"]


def test_groups_of_copies_stay_together() -> None:
    tree = {"algo": "grpo", "vec": {"num_envs": 24, "group_size": 8}, "train": {"teams": 6}}
    with pytest.raises(UsageError, match="multiples of 16"):
        check_shares(resolve_config("bandit", overrides=tree), 2)
    check_shares(resolve_config("bandit", overrides=tree), 3)


def test_a_run_of_several_ranks_goes_on_with_as_many() -> None:
    state = {"steps": 8, "ranks": [{"own_steps": 4}]}
    assert num_ranks(state) == 2
    with pytest.raises(UsageError, match="for a run of 2.*--nproc 2"):
        hand_out_checkpoint(SINGLE_PROCESS, Checkpoint({}, state))


class Gathered(Ranks):
    """The first of three ranks, beside which the others have said what they have."""

    size = 3

    def __init__(self, others: list[Any]) -> None:
        self.others = others

    def bring(self, value: Any) -> list[Any]:
        return [value, *self.others]

    def hand_out(self, values: list[Any]) -> Any:
        return values


class Sender(Ranks):
    """One of the other ranks, which notes what it sends."""

    size = 3

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def bring(self, value: Any) -> list[Any]:
        self.sent = value
        return []


def test_every_rank_gets_back_from_a_checkpoint_what_it_had() -> None:
    common = {"policy_0": {"weight": torch.ones(2)}, "optimiser_0": {"step": torch.ones(1)}}
    had = [
        ({**common, "rows_0": {"a": torch.full((2,), float(rank))}}, {"own": rank, "steps": 9})
        for rank in range(3)
    ]
    senders = [Sender(rank) for rank in (1, 2)]
    for sender in senders:
        tensors, state = had[sender.rank]
        kept, _ = gather_checkpoint(sender, tensors, {**state, "optimisers": "the first one's"})
        assert kept is tensors
        assert sender.sent[0].keys() == {"rows_0"}
        assert sender.sent[1] == state
    ranks = Gathered([sender.sent for sender in senders])
    tensors, state = gather_checkpoint(ranks, had[0][0], {**had[0][1], "optimisers": "all"})
    assert num_ranks(state) == 3
    assert tensors.keys() == {*common, "rows_0", "rank1.rows_0", "rank2.rows_0"}
    parts: Any = hand_out_checkpoint(ranks, Checkpoint(tensors, state))
    for rank, part in enumerate(parts):
        assert part.state == {**had[rank][1], "optimisers": "all"}
        assert part.tensors.keys() == had[rank][0].keys()
        assert torch.equal(part.tensors["rows_0"]["a"], had[rank][0]["rows_0"]["a"])


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1e9", "nan"])
def test_a_timeout_is_a_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT, text)
    with pytest.raises(UsageError, match="rank-timeout"):
        timeout()


def test_moments_of_nothing_are_zeros() -> None:
    found = SINGLE_PROCESS.moments(moments_of(np.zeros((0, 3), np.float32)))
    assert found.count == 0
    assert found.mean.shape == (3,)
