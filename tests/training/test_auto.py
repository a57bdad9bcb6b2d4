"""The search for settings (`fugu train --auto`): members, ranking, and what a search leaves."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from auto_cases import SMALL, STEPS, record_of, search
from gymnasium import spaces

from fugu import native
from fugu.algos.ppo import PPOConfig
from fugu.algos.settings import read_config
from fugu.core.config import merge, read_toml
from fugu.core.errors import UsageError
from fugu.store.run import Run
from fugu.training import auto_search as search_module
from fugu.training.auto_record import (
    Candidate,
    Rung,
    SearchRecord,
    describe_choice,
    make_curious_members,
    make_members,
    rung_table,
    show_progress,
    write_curves,
)
from fugu.training.auto_search import (
    ReturnEstimate,
    SearchStoppedError,
    is_better,
    lead_of_estimates,
    lead_of_pairs,
    rank,
    recent_return,
    returns_vary,
)
from fugu.training.evaluate import evaluate
from fugu.training.inputs import RunInputs
from fugu.training.session import resume, train
from fugu.training.trainer import DivergedError

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.skipif(not native.available, reason="needs the native extension"),
]


class ConstantReturn(gymnasium.Env[Any, Any]):
    """Episodes of four steps whose return is always the same."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        return self._look(), 0.0, False, self._step == 4, {}

    def _look(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


# ---------------------------------------------------------------------- members


@pytest.mark.parametrize(
    "train_cfg",
    [
        PPOConfig(),
        PPOConfig(desired_kl=0.02, final_desired_kl=0.001, learning_rate=3e-4, epochs=10),
        PPOConfig(gamma=1.0, replay_ratio=0.5, entropy_coefficient=0.0),
    ],
)
def test_members_start_with_the_defaults_and_change_few_factors(train_cfg: PPOConfig) -> None:
    members = make_members(train_cfg)
    assert not members[0].changes
    assert 6 <= len(members) <= 8
    assert len({member.name for member in members}) == len(members)
    assert len({member.describe() for member in members}) == len(members), "two are the same"
    for member in members[1:]:
        assert member.reason
        assert all(getattr(train_cfg, k) != v for k, v in member.changes.items() if k != "schedule")
        rates = {"learning_rate", "schedule", "desired_kl", "final_desired_kl"}
        factors = {"rate" if name in rates else name for name in member.changes}
        assert len(factors) <= 2


def test_a_rate_that_adapts_is_varied_by_its_desired_divergence() -> None:
    adaptive = PPOConfig(desired_kl=0.02, final_desired_kl=0.001, learning_rate=3e-4)
    members = {member.name: member.changes for member in make_members(adaptive)}
    assert members["rate-up"] == {"desired_kl": 0.04, "final_desired_kl": 0.002}
    assert "rate-adaptive" not in members
    fixed = {member.name: member.changes for member in make_members(PPOConfig())}
    assert fixed["rate-up"] == {"learning_rate": 0.009}
    assert fixed["rate-adaptive"]["desired_kl"] == 0.02
    wrong = make_members(PPOConfig(desired_kl=0.02, learning_rate=1e-7))
    assert "rate-adaptive" in {member.name for member in wrong}


def test_discounts_have_a_fifth_and_five_times_the_horizon() -> None:
    found = {member.name: member.changes for member in make_members(PPOConfig(gamma=0.99))}
    assert (found["gamma-down"], found["gamma-up"]) == ({"gamma": 0.95}, {"gamma": 0.998})
    endless = {member.name: member.changes for member in make_members(PPOConfig(gamma=1.0))}
    assert endless["gamma-down"] == {"gamma": 0.99}
    assert "gamma-up" not in endless


def test_members_that_explore_are_rewarded_for_new_observations_and_look_further() -> None:
    found = {member.name: member.changes for member in make_curious_members(PPOConfig())}
    longer = 1.0 - (1.0 - PPOConfig().gamma) / 5.0
    expected = {"intrinsic": "rnd", "gamma": pytest.approx(longer)}
    assert found == {"rnd": {"intrinsic": "rnd"}, "rnd-gamma-up": expected}
    assert [m.name for m in make_curious_members(PPOConfig(gamma=1.0))] == ["rnd"]
    assert make_curious_members(PPOConfig(intrinsic="rnd")) == []


# ---------------------------------------------------------------------- ranking


def write_metrics(path: Path, *updates: tuple[int, float | None, int]) -> Path:
    lines = [
        {"step": step, "seconds": 0.0}
        | ({} if mean is None else {"episode_return": mean, "episodes": count})
        for step, mean, count in updates
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_recent_return_is_that_of_the_second_half(tmp_path: Path) -> None:
    path = write_metrics(
        tmp_path / "metrics.jsonl", (10, 100.0, 9), (20, None, 0), (30, 2.0, 1), (40, 4.0, 3)
    )
    assert recent_return(path, 40) == ReturnEstimate(3.5, 1.0, 4)
    assert recent_return(path, 30) == ReturnEstimate(2.0, 0.0, 1), "later updates do not count"
    assert recent_return(path, 20) == ReturnEstimate(100.0, 0.0, 9), "none ended in the half"
    assert recent_return(tmp_path / "none.jsonl", 20) is None


def test_returns_vary_only_if_two_updates_differ(tmp_path: Path) -> None:
    one = write_metrics(tmp_path / "1", (10, -200.0, 2), (20, -200.0, 3))
    two = write_metrics(tmp_path / "2", (10, -200.0, 2))
    other = write_metrics(tmp_path / "3", (10, -199.0, 2))
    nothing = write_metrics(tmp_path / "4", (10, None, 0))
    assert not returns_vary([one, two, nothing])
    assert returns_vary([one, two, other])
    assert returns_vary([nothing]), "no episode has ended: nothing is known"


def test_members_without_episodes_and_nan_rank_last() -> None:
    scores = {"defaults": -5.0, "a": None, "b": float("nan"), "c": -1.0, "rnd": -5.0}
    assert rank(scores) == ["c", "defaults", "rnd", "a", "b"]
    assert rank(scores, ["rnd"])[:3] == ["c", "rnd", "defaults"]


def test_a_lead_within_its_standard_error_is_a_tie() -> None:
    assert not is_better(lead_of_pairs([1.0, 9.0, -8.0], [0.0, 1.0, 0.0]))
    assert is_better(lead_of_pairs([1.0, 1.1, 0.9], [0.0, 0.0, 0.0]))
    assert not is_better(lead_of_pairs([500.0] * 4, [500.0] * 4))
    near, far = ReturnEstimate(1.0, 1.0, 9), ReturnEstimate(9.0, 1.0, 9)
    assert is_better(lead_of_estimates(far, near))
    assert not is_better(lead_of_estimates(near, near))
    assert not is_better(lead_of_estimates(None, near))
    assert is_better(lead_of_estimates(near, None))


# ---------------------------------------------------------------------- what a search leaves


def test_a_search_leaves_a_normal_run_of_the_winner(tmp_path: Path) -> None:
    result = search(tmp_path)
    record = record_of(result)
    assert result.run is not None
    assert (result.status, result.run.status) == ("finished", "finished")
    assert result.steps >= STEPS
    assert [rung.steps for rung in record.rungs] == [STEPS // 8, STEPS // 4, STEPS // 2, STEPS]
    assert [len(rung.returns) for rung in record.rungs] == [8, 4, 2, 2]
    assert all("defaults" in rung.kept for rung in record.rungs)
    assert 3 * STEPS <= record.trained_steps <= 4 * STEPS
    assert record.winner is not None
    chosen = record.member(record.winner)
    cfg = read_config(result.run.config)
    assert all(getattr(cfg.train, name) == value for name, value in chosen.changes.items())
    assert cfg.run.name == "auto"
    assert evaluate(result.run, episodes=4).returns
    assert [run.name for run in Run.list(tmp_path)] == ["auto"], "members are not listed as runs"
    assert (result.run.folder / "auto.png").read_bytes().startswith(b"\x89PNG")
    left = {path.parent.name for path in result.run.folder.glob("members/*/checkpoints")}
    assert left == {*record.rungs[-1].kept} - {record.winner}
    assert record.winner in describe_choice(record) or "defaults" in describe_choice(record)
    assert rung_table(record, record.rungs[0]).row_count == 8


def test_the_table_of_a_rung_has_the_best_return_first_and_unknown_ones_last() -> None:
    members = tuple(Candidate(name, {}, "") for name in ("a", "b", "c"))
    rung = Rung(50, dict.fromkeys("abc", 50), {"a": 1.5, "b": None, "c": 20.0}, ("c",))
    record = SearchRecord({"train": {"total_steps": 100}}, members, (rung,))
    table = rung_table(record, rung)
    assert table.title == "after 50 of 100 steps each"
    columns = [list(column.cells) for column in table.columns]
    assert columns == [["c", "a", "b"], ["none"] * 3, ["20", "1.5", "-"], ["yes", "no", "no"]]


@pytest.mark.parametrize("show", [True, False])
def test_a_search_is_shown_if_asked_for_and_timed(
    show: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Any] = []

    class Stopped:
        def __init__(self, *args: Any) -> None:
            reports.append(args[-1])

        def run(self) -> None:
            raise SearchStoppedError((2,))

    clock = iter([10.0, 12.5])
    monkeypatch.setattr(search_module, "Search", Stopped)
    monkeypatch.setattr(search_module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    run = Run.create(tmp_path, "auto", "cartpole")
    SearchRecord({"train": {"total_steps": 100}}, ()).write(run)
    parts = RunInputs(trust=True)
    found = search_module.resume_auto(run, parts, lambda *_: None, {}, show=show)  # type: ignore[arg-type]
    assert (reports[0] is show_progress) == show
    assert (found.seconds, found.status, found.signals) == (2.5, "stopped", (2,))


def test_the_settings_that_were_written_train_the_same_policy(tmp_path: Path) -> None:
    found = search(tmp_path)
    assert found.run is not None
    settings = found.run.folder / "auto.toml"
    assert read_toml(settings)["train"]["total_steps"] == STEPS
    again = train(
        "cartpole", config=settings, seed=3, show=False, run={"folder": tmp_path, "name": "again"}
    )
    for one, two in zip(found.policies, again.policies, strict=True):
        for name, weight in two.state_dict().items():
            torch.testing.assert_close(one.state_dict()[name], weight, rtol=0, atol=0)
    other = train("cartpole", config=settings, seed=4, keep=False, show=False)
    first = next(iter(other.policies[0].parameters()))
    assert not torch.equal(first, next(iter(found.policies[0].parameters())))


def test_a_search_that_is_not_kept_leaves_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    result = train("cartpole", auto=True, keep=False, show=False, **SMALL)
    assert (result.run, result.status, len(result.policies)) == (None, "finished", 1)
    assert not list(tmp_path.iterdir())


def test_a_finished_search_resumes_as_a_plain_run(tmp_path: Path) -> None:
    search(tmp_path)
    longer = resume("auto", root=tmp_path, show=False, train={"total_steps": STEPS + 64})
    assert longer.status == "finished"
    assert longer.steps >= STEPS + 64


def test_no_picture_without_matplotlib(tmp_path: Path, monkeypatch: Any) -> None:
    record = record_of(search(tmp_path))
    members = tmp_path / "auto" / "members"
    write_curves(record, members, tmp_path / "with.png")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write_curves(record, members, tmp_path / "without.png")
    assert (tmp_path / "with.png").exists()
    assert not (tmp_path / "without.png").exists()


@pytest.mark.parametrize("second", [None, (1.0,)], ids=["too long", "not as many episodes"])
def test_finalists_that_cannot_be_paired_are_compared_by_training_returns(
    second: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def play(self: Any, name: str) -> Any:
        return (1.0, 2.0) if name == "defaults" else second

    monkeypatch.setattr("fugu.training.auto_search.Search._play", play)
    assert "over the last training episodes" in record_of(search(tmp_path)).why


# ---------------------------------------------------------------------- rare rewards and faults


def test_constant_returns_add_members_that_explore_and_end_with_the_defaults(
    tmp_path: Path,
) -> None:
    serial = {"vec": {"num_envs": 8, "backend": "serial"}}
    record = record_of(search(tmp_path, ConstantReturn, **serial))
    added = [member.name for member in make_curious_members(PPOConfig())]
    assert [member.name for member in record.members[8:]] == added
    assert {*added} <= {*record.rungs[0].kept}, "ties go to members that explore"
    assert record.winner == "defaults", "and in the end to the defaults"


def test_returns_that_vary_add_no_members(tmp_path: Path) -> None:
    assert len(record_of(search(tmp_path)).members) == 8


def diverge(*names: str) -> Any:
    def spoil(trainer: Any, progress: Any) -> None:
        if trainer.cfg.run.name in names:
            with torch.no_grad():
                next(iter(trainer.policies[0].parameters())).fill_(torch.nan)

    return spoil


def test_a_member_that_diverges_is_dropped(tmp_path: Path) -> None:
    record = record_of(search(tmp_path, callbacks=[diverge("rate-up")]))
    assert "rate-up" in record.rungs[0].returns
    assert "rate-up" not in record.rungs[0].kept
    assert len(record.rungs[0].kept) == 4


def test_defaults_that_diverge_lose(tmp_path: Path) -> None:
    record = record_of(search(tmp_path, callbacks=[diverge("defaults")]))
    assert "defaults" not in record.rungs[0].kept
    assert record.winner != "defaults"
    assert len(record.rungs[0].kept) == 4


def test_a_search_whose_members_all_diverge_says_so(tmp_path: Path) -> None:
    names = [member.name for member in make_members(PPOConfig())]
    with pytest.raises(DivergedError, match="every member diverged"):
        search(tmp_path, callbacks=[diverge(*names)])


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"algo": "dreamer"}, "expected algo 'ppo'; got 'dreamer'"),
        (
            {"train": {"total_steps": STEPS - 1, "horizon": 8}},
            "expected train.total_steps of 2,048",
        ),
        ({"league": {"enabled": True}}, "league"),
        ({"run": {"record_data": "data"}}, "record_data"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"run": {"folder": tmp_path}, "vec": {"num_envs": 8}}
    with pytest.raises(UsageError, match=message):
        train("cartpole", auto=True, show=False, **merge(settings, more))
    assert not list(tmp_path.iterdir())


def test_settings_of_a_search_under_way_are_fixed(tmp_path: Path) -> None:
    def stop(trainer: Any, progress: Any) -> None:
        trainer.stopping = True

    assert search(tmp_path, callbacks=[stop]).status == "stopped"
    with pytest.raises(UsageError, match="has not chosen yet"):
        resume("auto", root=tmp_path, show=False, train={"total_steps": 9999})
