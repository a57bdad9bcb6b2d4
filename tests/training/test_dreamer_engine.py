"""Dreamer's engine: what it writes into the replay, how often it learns, exact resumption."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fugu.core.errors import UsageError
from fugu.envs.contract import Buffers
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.track.sinks import read_metrics
from fugu.training.config import resolve_config
from fugu.training.evaluate import evaluate
from fugu.training.inputs import RunInputs
from fugu.training.session import resume, train
from fugu.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parents[1] / "algos"))

from dreamer_toys import Diary

pytestmark = pytest.mark.timeout(280)
TINY: dict[str, Any] = {
    "policy": {
        "deter": 16, "hidden": 8, "stoch": 4, "classes": 4, "blocks": 4, "units": 8, "layers": 1,
        "depth": 2,
    },
    "train": {
        "batch_size": 3, "batch_length": 6, "imagination_starts": 3, "imagination_length": 3,
        "prefill": 64, "update_every": 16, "train_ratio": 4.0, "replay_size": 2000,
    },
    "vec": {"num_envs": 4, "backend": "serial"},
}  # fmt: skip


def settings(**changes: Any) -> dict[str, Any]:
    sections = {name: {**section, **changes.get(name, {})} for name, section in TINY.items()}
    return {"algo": "dreamer", "seed": 3, **sections}


def make_trainer(env: Any = Diary, **changes: Any) -> Trainer:
    cfg = resolve_config("<called>", overrides=settings(**changes))
    return Trainer(cfg, RunInputs(env))


def test_replay_holds_what_happened_across_ends_and_environments() -> None:
    trainer = make_trainer()
    engine: Any = trainer.algorithm
    try:
        engine.start(0)
        for _ in range(6):
            engine.collect()
            for actor in engine.actors:
                actor.settle()
        replay = engine.actors[0].replay
        batch = replay.sample(2000, np.random.default_rng(0), torch.device("cpu"))
    finally:
        trainer.close()
    episode, time, done, secret = batch.observations.unbind(-1)
    first, last = batch.first, batch.last
    assert first[1:].any()
    assert (last & batch.terminal).any()
    assert (last & ~batch.terminal).any()
    assert torch.equal(first[1:], last[:-1])  # one follows the other
    assert torch.equal(first, time == 0)
    goes_on = ~first[1:]
    same = (episode[1:] == episode[:-1]) & (secret[1:] == secret[:-1])
    assert torch.equal(same & (time[1:] == time[:-1] + 1), goes_on)
    assert torch.equal(done[1:][goes_on], batch.samples[:-1, :, 0][goes_on])
    assert torch.equal(batch.rewards, torch.where(first, 0.0, time))
    assert not batch.terminal[~last].any()
    assert (episode[1:] == episode[:-1] + 1)[first[1:]].all()


def test_latents_of_the_replay_are_those_of_the_whole_episode() -> None:
    """What acting stored is what observing the episode from its start gives, chance aside."""
    trainer = make_trainer()
    engine: Any = trainer.algorithm
    try:
        engine.start(0)
        engine.collect()
        (actor,) = engine.actors
        rssm = actor.agent.world.rssm
        arrays = actor.replay._arrays
        begins = np.flatnonzero(arrays["first"][0])[1]
        length = int(np.flatnonzero(arrays["last"][0][begins:])[0])
        part = slice(begins, begins + length)
        seen = torch.from_numpy(arrays["observations"][0, part])
        samples = torch.from_numpy(arrays["samples"][0, part])
        deter, stoch = torch.zeros(1, rssm.deter), torch.zeros(1, rssm.stoch * rssm.classes)
        action = torch.zeros(1, actor.agent.world.code.size)
        for step in range(length):
            deter = rssm.advance(deter, stoch, rssm.embed_actions(action))
            stored = torch.from_numpy(arrays["deter"][0, begins + step].astype(np.float32))
            assert torch.allclose(stored, deter[0], atol=2e-3)
            stoch = rssm.one_hot(torch.from_numpy(arrays["stoch"][0, begins + step]).long()[None])
            action = actor.agent.world.code(samples[step : step + 1])
            assert seen[step, 1] == step
    finally:
        trainer.close()


def rows_of(env: Any, count: int) -> Buffers:
    trainer = make_trainer(env)
    group = trainer.vec.groups[0]
    trainer.close()
    specs = Buffers.specs(group)
    arrays = {n: np.zeros((count, *shape[1:]), kind) for n, (shape, kind) in specs.items()}
    return Buffers(**arrays)


def test_a_fault_ends_the_episode_without_a_last_observation() -> None:
    trainer = make_trainer()
    engine: Any = trainer.algorithm
    (actor,) = engine.actors
    rows, agents = rows_of(Diary, 1), np.array([0])
    rows.live[:], rows.valid[:], rows.action_masks[:] = True, True, True
    with torch.no_grad():
        for time in range(4):
            rows.observations[:] = time
            rows.rewards[:] = 100.0 if time == 2 else 1.0
            rows.valid[:] = time != 2
            actor.act(agents, rows)
    trainer.close()
    arrays = actor.replay._arrays
    assert arrays["first"][0, :4].tolist() == [True, False, True, False]
    assert arrays["last"][0, :4].tolist() == [False, True, False, False]
    assert not arrays["terminal"].any()
    assert arrays["rewards"][0, :4].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_rewards_reach_the_next_time_an_agent_acts() -> None:
    trainer = make_trainer()
    engine: Any = trainer.algorithm
    (actor,) = engine.actors
    rows, agents = rows_of(Diary, 1), np.array([0])
    rows.valid[:], rows.action_masks[:] = True, True
    with torch.no_grad():
        for live, reward in ((True, 5.0), (False, 1.0), (False, 2.0), (True, 4.0)):
            rows.live[:], rows.rewards[:] = live, reward
            state = actor.states.clone()
            actor.act(agents, rows)
            assert torch.equal(state[0], actor.states[0]) is not live
    trainer.close()
    assert actor.replay._written[0] == 2
    assert actor.replay._arrays["rewards"][0, :2].tolist() == [0.0, 7.0]


@pytest.mark.parametrize(("ratio", "every"), [(4.0, 16), (0.5, 16), (18.0, 1)])
def test_the_train_ratio_says_how_often_it_learns(ratio: float, every: int) -> None:
    trainer = make_trainer(train={"train_ratio": ratio, "update_every": every})
    engine: Any = trainer.algorithm
    try:
        engine.start(0)
        engine.collect()
        engine.update(0.0)
        steps, taken = engine.steps, engine.learners[0].steps
        while engine.steps < steps + 300:
            engine.collect()
            engine.update(0.0)
        owed = (engine.steps - steps) * ratio / 18
        assert engine.learners[0].steps - taken == pytest.approx(owed, abs=1.0)
    finally:
        trainer.close()


def fingerprint(run: Run) -> tuple[str, list[dict[str, Any]]]:
    """A hash of all that a run's last checkpoint holds, and its metrics without timings."""
    path = run.latest()
    assert path is not None
    checkpoint = load_checkpoint(path)
    digest = hashlib.sha256()
    for file in sorted(checkpoint.tensors):
        for name in sorted(checkpoint.tensors[file]):
            digest.update(f"{file}.{name}".encode())
            digest.update(checkpoint.tensors[file][name].contiguous().numpy().tobytes())
    for name in ("random", "optimisers", "counters"):
        digest.update(repr(checkpoint.state[name]).encode())
    kept = []
    for line in read_metrics(run.metrics_path):
        kept.append({k: v for k, v in line.items() if "second" not in k})
    return digest.hexdigest(), kept


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("cartpole", {"backend": "native"}),
    "native continuous": ("pendulum", {"backend": "native"}),
    "native masked": ("masked", {"backend": "native"}),
    "processes": ("CartPole-v1", {"backend": "process", "num_workers": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_equals_never_stopped(case: str, tmp_path: Path) -> None:
    env, vec = CASES[case]
    changes = settings(vec=vec, train={"total_steps": 320, "replay_size": 200})
    whole = train(env, show=False, run={"folder": tmp_path, "name": "whole"}, **changes)

    def stop(trainer: Trainer, progress: Any) -> None:
        trainer.stopping = progress.updates == 5

    part = train(
        env,
        show=False,
        run={"folder": tmp_path, "name": "part"},
        callbacks=[stop],
        **changes,
    )
    assert part.status == "stopped"
    rest = resume("part", root=tmp_path, show=False)
    assert rest.status == "finished"
    assert rest.run is not None
    assert whole.run is not None
    assert fingerprint(rest.run) == fingerprint(whole.run)
    other = train(
        env, show=False, run={"folder": tmp_path, "name": "other"}, **{**changes, "seed": 4}
    )
    assert other.run is not None
    assert fingerprint(other.run)[0] != fingerprint(whole.run)[0]


def test_runs_are_evaluated_alike_each_time(tmp_path: Path) -> None:
    run = {"folder": tmp_path, "name": "run"}
    train("cartpole", show=False, run=run, **settings(train={"total_steps": 200}))
    found = [evaluate("run", root=tmp_path, episodes=8) for _ in range(2)]
    assert found[0] == found[1]
    drawn = evaluate("run", root=tmp_path, episodes=8, greedy=False)
    assert drawn.returns != found[0].returns


def test_settings_that_do_not_fit_are_refused() -> None:
    for section, name, value in (
        ("train", "imagination_starts", 7),
        ("train", "train_ratio", 0.0),
        ("train", "cpu_offload", True),
        ("policy", "blocks", 3),
        ("policy", "bins", 4),
    ):
        with pytest.raises(UsageError, match=f"{section}.{name}.*allowed"):
            resolve_config("cartpole", overrides=settings(**{section: {name: value}}))


def test_presets_are_the_published_sizes() -> None:
    sizes = {"1m": (512, 64, 4), "12m": (2048, 256, 16), "200m": (8192, 1024, 64)}
    for preset, size in sizes.items():
        cfg: Any = resolve_config("cartpole", preset=preset)
        assert (cfg.policy.deter, cfg.policy.hidden, cfg.policy.classes) == size
        assert cfg.policy.units == cfg.policy.hidden
        assert (cfg.train.batch_size, cfg.train.batch_length) == (16, 64)
        assert (cfg.train.learning_rate, cfg.train.replay_size) == (4e-5, 5_000_000)
    assert resolve_config("cartpole", preset="cpu").algo == "dreamer"
