"""Training in a league: what is learned from, what joins the pool, and going on exactly."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact_games import Kuhn
from league_toys import Marks

from fugu.algos.ppo import PPO
from fugu.core.errors import UsageError
from fugu.league.ledger import Ledger
from fugu.league.players import snapshots
from fugu.league.pool import LEARNER, Record
from fugu.league.self_play import SelfPlay
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.training.config import resolve_config
from fugu.training.inputs import RunInputs
from fugu.training.session import resume, train
from fugu.training.trainer import Trainer

LEAGUE: dict[str, Any] = {"enabled": True, "self_share": 0.3, "in_play": 3}
SMALL: dict[str, Any] = {
    "vec": {"num_envs": 16, "backend": "serial"},
    "policy": {"hidden_size": 16},
}


def league(trainer: Trainer) -> SelfPlay:
    assert isinstance(trainer.algorithm, PPO)
    assert isinstance(trainer.algorithm.opponents, SelfPlay)
    return trainer.algorithm.opponents


@pytest.mark.parametrize("leaves", [0.0, 0.2])
def test_only_the_learners_steps_are_learned_from_and_none_is_lost(leaves: float) -> None:
    """Observations come but once, so each stored step can be found again, and what it earned."""
    cfg = resolve_config(
        "marks",
        overrides={
            **SMALL,
            "league": {**LEAGUE, "snapshot_every": 300},
            "train": {"horizon": 8, "total_steps": 10_000},
        },
    )
    trainer = Trainer(cfg, RunInputs(env=partial(Marks, 2, leaves)))
    engine: Any = trainer.algorithm
    segments, seats = engine.groups[0].actor.store, engine.opponents.pool.seats
    mine: dict[tuple[float, ...], tuple[float, bool, bool]] = {}  # what followed each sight
    others: set[tuple[float, ...]] = set()
    last: dict[int, tuple[float, ...]] = {}  # of the learner's agents that wait

    def watch(batch: Any, actions: Any) -> None:
        rows, agents = batch.groups[0].rows, batch.groups[0].agent_ids
        holders = seats.of_group(0, seats.holders[batch.env_ids])
        for i, agent in enumerate(agents.tolist()):
            before = last.pop(agent, None)
            if before is not None:
                ends = bool(rows.terminations[i]), bool(rows.truncations[i])
                mine[before] = (float(rows.rewards[i]), *ends)
            sight = tuple(rows.observations[i].tolist())
            if rows.live[i] and holders[i] == LEARNER:
                last[agent] = sight
            else:
                others.add(sight)

    engine.collector.on_batch = watch
    stored = 0
    try:
        engine.start(1)
        for _ in range(6):
            engine.collect()
            for row in segments.take():
                for time in range(8):
                    sight = tuple(segments.observations.array[row, time].tolist())  # type: ignore[index]
                    assert sight not in others
                    reward, terminated, truncated = mine[sight]
                    assert segments.rewards[time, row] == pytest.approx(reward)
                    assert bool(segments.terminations[time, row]) == terminated
                    assert bool(segments.truncations[time, row]) == truncated
                    assert segments.valid[time, row]
                    stored += 1
            engine.update(0.1)
        open_steps = int(segments._length.sum()) + 8 * segments.complete
        assert engine.steps == stored + open_steps == len(mine) + len(last)
    finally:
        trainer.close()
    assert len(others) > 500
    assert len(engine.opponents.pool.members) >= 4  # the first one and some on the way


def test_recurrent_learners_begin_every_match_with_no_memory() -> None:
    cfg = resolve_config(
        "marks",
        overrides={
            **SMALL,
            "policy": {"hidden_size": 16, "core": "lstm", "engine": "torch"},
            "league": LEAGUE,
            "train": {"horizon": 4},
        },
    )
    trainer = Trainer(cfg, RunInputs(env=Marks))
    engine: Any = trainer.algorithm
    actor, begun = engine.groups[0].actor, 0
    seen_states: list[torch.Tensor] = []
    forward = actor.policy.forward
    actor.policy.forward = lambda seen, state: (  # type: ignore[method-assign]
        seen_states.append(state.clone()), forward(seen, state))[1]  # fmt: skip
    original = actor.act

    def act(agents: Any, rows: Any) -> Any:
        nonlocal begun
        fresh = rows.live & (rows.terminations | rows.truncations | ~rows.valid)
        seen_states.clear()
        found = original(agents, rows)
        assert (seen_states[-1][fresh] == 0).all()
        begun += int(fresh.sum())
        return found

    actor.act = act  # type: ignore[method-assign]
    try:
        engine.start(1)
        for _ in range(8):
            engine.collect()
            engine.update(0.1)
    finally:
        trainer.close()
    assert begun > 50


def fingerprint(run: Run) -> tuple[str, Any]:
    """A hash of all that a run's last checkpoint holds, and what it says of the league."""
    path = run.latest()
    assert path is not None
    checkpoint = load_checkpoint(path)
    digest = hashlib.sha256()
    for file in sorted(checkpoint.tensors):
        for name in sorted(checkpoint.tensors[file]):
            digest.update(f"{file}.{name}".encode())
            digest.update(checkpoint.tensors[file][name].contiguous().numpy().tobytes())
    told = dict(checkpoint.state["league"])
    told["members"] = [{**m, "name": m["name"].partition(":")[2]} for m in told["members"]]
    return digest.hexdigest(), (told, checkpoint.state["random"])


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_stopped_and_resumed_equals_never_stopped(core: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "train": {"total_steps": 6 * 256, "horizon": 16},
        "vec": {"num_envs": 16},
        "policy": {"core": core, "hidden_size": 16},
        "league": {**LEAGUE, "snapshot_every": 400},
        "show": False,
        "seed": 3,
    }
    whole = train("connect4", run={"folder": tmp_path, "name": "whole"}, **settings)
    stop_at = 3

    def stop(trainer: Trainer, progress: Any) -> None:
        trainer.stopping = progress.updates == stop_at

    train("connect4", run={"folder": tmp_path, "name": "part"}, callbacks=[stop], **settings)
    with Ledger(tmp_path / "league.sqlite") as ledger:  # as if it was killed after another word
        (game,) = ledger.games()
        numbers = [entry.number for entry in ledger.players(game) if entry.run == "part"]
        ledger.add({(numbers[0], numbers[-1]): (1000, 0, 0)}, source="part", sequence=999)
    rest = resume("part", root=tmp_path, show=False)
    assert rest.run is not None
    assert whole.run is not None
    assert fingerprint(rest.run) == fingerprint(whole.run)
    assert [p.name for p in snapshots(rest.run)] == [p.name for p in snapshots(whole.run)]
    assert len(snapshots(rest.run)) >= 4
    with Ledger(tmp_path / "league.sqlite") as ledger:
        names = {entry.number: entry.name for entry in ledger.players(game)}
        totals: dict[str, dict[Any, Any]] = {"whole": {}, "part": {}}
        for tally in ledger.tallies(game):
            run = names[tally.first].partition(":")[0]
            steps = tuple(names[n].partition(":")[2] for n in (tally.first, tally.second))
            counts = (tally.wins, tally.draws, tally.losses)
            if int(steps[0]) > int(steps[1]):
                steps, counts = steps[::-1], counts[::-1]
            old = totals[run].get(steps, (0, 0, 0))
            totals[run][steps] = tuple(a + b for a, b in zip(old, counts, strict=True))
    assert totals["part"] == totals["whole"]
    assert sum(map(sum, totals["whole"].values())) > 50


def test_snapshots_join_when_the_pool_is_beaten_and_the_weakest_retires() -> None:
    trainer_of: list[Trainer] = []
    sizes: list[int] = []

    def watch(trainer: Trainer, progress: Any) -> None:
        trainer_of[:] = [trainer]
        pool = league(trainer).pool
        sizes.append(len(pool.active))
        for member in pool.active:
            member.record = Record(wins=800)  # an update has a quarter as many games

    train(
        Kuhn,
        keep=False,
        show=False,
        train={"total_steps": 4000, "horizon": 8},
        league={**LEAGUE, "snapshot_every": 0, "snapshot_score": 0.7, "pool_size": 3},
        callbacks=[watch],
        **SMALL,
    )
    assert sizes[:4] == [1, 2, 3, 3]
    pool = league(trainer_of[0]).pool
    assert [member.step for member in pool.active][-1] > 1000  # type: ignore[operator]
    steps = [member.step for member in pool.active]
    assert steps == sorted(steps)  # type: ignore[type-var]


def test_connect4_and_pong_work_out_of_the_box() -> None:
    for env, opponent in (("connect4", 2), ("pong", 1)):
        plain = resolve_config(env)
        assert plain.env_kwargs == {}
        cfg = resolve_config(env, overrides={"league": {"enabled": "true"}})
        assert cfg.env_kwargs == {"opponent": opponent}
        result = train(
            env,
            keep=False,
            show=False,
            league=LEAGUE,
            train={"total_steps": 600},
            vec={"num_envs": 16},
        )
        assert result.status == "finished"


def test_other_runs_can_be_in_the_pool_for_good(tmp_path: Path) -> None:
    plain = train(
        "connect4",
        show=False,
        train={"total_steps": 300},
        vec={"num_envs": 16},
        run={"folder": tmp_path, "name": "plain"},
        policy={"hidden_size": 32},
    )
    met: list[str] = []

    def watch(trainer: Trainer, progress: Any) -> None:
        met[:] = [m.name for m in league(trainer).pool.members if m.record.games]

    settings = {**LEAGUE, "opponents": "plain,random", "in_play": 6, "draw": "uniform"}
    result = train(
        "connect4",
        show=False,
        league=settings,
        train={"total_steps": 2000},
        vec={"num_envs": 16},
        run={"folder": tmp_path, "name": "taught"},
        callbacks=[watch],
    )
    assert {f"plain:{plain.steps}", "random", "taught:0"} <= {*met}
    more = {"train": {"total_steps": result.steps + 500}}
    again = resume("taught", root=tmp_path, show=False, **more)
    assert again.steps >= result.steps + 500


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("cartpole", {}, "two or more agents"),
        ("connect4", {"algo": "grpo"}, "allowed: ppo, safe_ppo"),
        ("connect4", {"league": {**LEAGUE, "self_share": 2.0}}, "0 to 1"),
        ("connect4", {"league": {**LEAGUE, "in_play": 0}}, "1 or more"),
        ("connect4", {"league": {**LEAGUE, "opponents": "nobody"}}, "holds no runs"),
        ("connect4", {"league": {**LEAGUE, "sides": 3}}, "divides them"),
    ],
)
def test_what_cannot_be_is_refused(
    env: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {"league": LEAGUE, "run": {"folder": tmp_path}, **settings}
    with pytest.raises(UsageError, match=message):
        train(env, keep=False, show=False, train={"total_steps": 100}, **given)


def test_the_same_seed_gives_the_same_league() -> None:
    found = []
    for seed in (1, 1, 2):
        result = train(
            Kuhn,
            keep=False,
            show=False,
            seed=seed,
            train={"total_steps": 2000, "horizon": 8},
            league={**LEAGUE, "snapshot_every": 500},
            **SMALL,
        )
        weights = [w.detach().numpy() for w in result.policies[0].parameters()]
        found.append(hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest())
    assert found[0] == found[1] != found[2]
    assert np.unique(found).size == 2
