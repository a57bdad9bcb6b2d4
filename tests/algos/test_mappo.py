"""MAPPO: what critics see, when agents are dead too; normalised values; exact resume."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.algorithm import RunContext
from fugu.algos.mappo import (
    MAPPO,
    MAPPOConfig,
    NormalizedCritics,
    ValueNorm,
    make_critic_layouts,
)
from fugu.algos.optimizers import OptimizerConfig, make_optimizer
from fugu.algos.ppo import PPOLearner
from fugu.algos.settings import read_config
from fugu.core.errors import UsageError
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.policies.central import CentralPolicy, CriticLayout, make_central_policy
from fugu.policies.config import PolicyConfig
from fugu.spaces import Layout
from fugu.store.checkpoint import load_checkpoint
from fugu.training.config import resolve_config
from fugu.training.evaluate import evaluate, load_policies
from fugu.training.session import resume, train
from fugu.vector import Vector, make

sys.path.insert(0, str(Path(__file__).parent))
from team_toys import Mortal

pytestmark = pytest.mark.timeout(200)


# ------------------------------------------------------------------ normalised values


def test_value_norm_equals_the_published_recurrence() -> None:
    beta, random = 0.9, np.random.default_rng(1)
    norm = ValueNorm(beta)
    mean = square = weight = 0.0
    for _ in range(7):
        returns = random.normal(3.0, 5.0, 40)
        norm.update(returns)
        mean = beta * mean + (1 - beta) * returns.mean()
        square = beta * square + (1 - beta) * (returns**2).mean()
        weight = beta * weight + (1 - beta)
    assert weight == pytest.approx(1 - beta**7)
    assert norm.mean == pytest.approx(mean / weight)
    assert norm.deviation == pytest.approx((square / weight - (mean / weight) ** 2) ** 0.5)
    values = torch.tensor([-2.0, 9.0])
    assert norm.normalize(values)[1].item() == pytest.approx((9 - norm.mean) / norm.deviation)
    torch.testing.assert_close(norm.denormalize(norm.normalize(values)), values)


def test_value_norm_is_debiased_and_never_divides_by_less_than_a_tenth() -> None:
    norm = ValueNorm()
    assert (norm.mean, norm.deviation) == (0.0, pytest.approx(0.1))
    norm.update(np.full(5, 4.0))
    assert (norm.mean, norm.deviation) == (pytest.approx(4.0), pytest.approx(0.1))
    before = norm.state_dict()["value_norm"].copy()
    norm.update(np.zeros(0))
    np.testing.assert_array_equal(norm.state_dict()["value_norm"], before)
    other = ValueNorm()
    other.load_state_dict(norm.state_dict())
    assert (other.mean, other.deviation) == (norm.mean, norm.deviation)


def learner_of(**settings: Any) -> tuple[MAPPO, Segments]:
    """A learner, and segments of random experience with returns around 50."""
    torch.manual_seed(1)
    layouts = Layout.of(spaces.Box(-9, 9, (3,))), Layout.of(spaces.Discrete(2))
    group = AgentGroup("agent", ("a", "b"), *layouts)
    critic_layout = CriticLayout.of(group, agent_ids=False, rest=((group.observation_layout, 2),))
    policy = make_central_policy(
        group,
        PolicyConfig(hidden_size=8),
        critic_layout,
        agent_ids=False,
        shared=True,
        critic=critic_layout.rest,
    )
    cfg = MAPPOConfig(horizon=5, epochs=1, microbatch=7, **settings)
    optimiser = make_optimizer(policy, OptimizerConfig())
    critics = NormalizedCritics(cfg)
    if cfg.normalise_values:
        policy.rescale = critics.value_norm.denormalize
    learner = PPOLearner(policy, optimiser, critics, np.random.default_rng(0))
    stored = replace(group, observation_layout=critic_layout.row_layout)
    segments = Segments(stored, SegmentShape(4, 4, 5, 1))
    random, everybody, yes = np.random.default_rng(5), np.arange(4), np.ones(4, bool)
    for _ in range(6):
        rows = random.normal(size=(4, critic_layout.size)).astype(np.float32)
        with torch.no_grad():
            params, values, _ = policy(torch.from_numpy(rows), torch.zeros(4, 0))
        samples, logs = policy.distribution.sample(params, None, random)
        states = np.zeros((4, 0), np.float32)
        segments.record_step(
            everybody, rows, np.ones((4, 2), bool), samples, logs, values.numpy(), states
        )
        rewards = random.normal(50, 5, 4).astype(np.float32)
        segments.record_reward(everybody, rewards, ~yes, ~yes, yes, yes)
    assert segments.full
    return learner, segments


def test_critics_are_fitted_to_normalised_returns_and_say_what_they_mean_in_rewards() -> None:
    learner, segments = learner_of()
    values = segments.values[0, :, segments.take()].T
    rewards = segments.rewards[:, segments.take()]
    returns, last = np.zeros((5, 4)), np.zeros(4)
    for t in range(4, -1, -1):  # GAE by hand
        last = rewards[t] + 0.99 * values[t + 1] - values[t] + 0.99 * 0.95 * last
        returns[t] = last + values[t]
    batches: list[Any] = []
    make_batches = learner.critics.minibatches

    def note(*arguments: Any) -> Any:
        for part in make_batches(*arguments):
            batches.append(part[1])
            yield part

    learner.critics.minibatches = note  # type: ignore[method-assign]
    policy = learner.policy
    assert isinstance(policy, CentralPolicy)
    told = learner.update(segments, 0.0)
    assert learner.critics.value_norm.mean == pytest.approx(returns.mean(), rel=1e-5)
    assert learner.critics.value_norm.deviation == pytest.approx(returns.std(), rel=1e-4)
    fitted = torch.cat([batch.returns.flatten() for batch in batches])
    assert fitted.mean().item() == pytest.approx(0.0, abs=1e-4)
    assert fitted.std(correction=0).item() == pytest.approx(1.0, abs=1e-3)
    assert told["return_mean"] == pytest.approx(returns.mean(), rel=1e-5)
    rows = torch.randn(3, policy.layout.size)
    raw, _ = policy.critics[0](rows, torch.zeros(3, 0))
    _, said, _ = policy(rows, torch.zeros(3, 0))
    expected = raw * learner.critics.value_norm.deviation + learner.critics.value_norm.mean
    torch.testing.assert_close(said, expected)


def test_without_normalisation_values_are_as_they_are() -> None:
    learner, segments = learner_of(normalise_values=False)
    learner.update(segments, 0.0)
    policy = learner.policy
    assert isinstance(policy, CentralPolicy)
    rows = torch.randn(3, policy.layout.size)
    raw, _ = policy.critics[0](rows, torch.zeros(3, 0))
    torch.testing.assert_close(policy(rows, torch.zeros(3, 0))[1], raw)


def test_time_limits_taken_for_ends_are_worth_nothing() -> None:
    for limits in ("bootstrap", "end"):
        learner, segments = learner_of(time_limits=limits)
        rows = segments.take()
        segments.truncations[2, rows] = True
        segments.final_values[:] = 1e6
        learner.update(segments, 0.0)
        assert (learner.critics.value_norm.mean > 1e4) == (limits == "bootstrap")


# ------------------------------------------------------------------ what critics see


def engine_of(env: Any, num_envs: int = 2, **train_: Any) -> tuple[MAPPO, Vector]:
    train_ = {"horizon": 3, **train_}
    cfg = resolve_config("given", overrides={"algo": "mappo", "train": train_})
    vec = make(env, num_envs, backend="serial", **cfg.train.emulation)
    return MAPPO(RunContext(cfg, vec, torch.device("cpu"))), vec


def layouts_of(engine: MAPPO) -> dict[str, Any]:
    """The critic layouts of all groups, by name."""
    view: Any = engine._view  # the collector's own may be watched by a test
    names = [group.name for group in engine.vec.groups]
    return dict(zip(names, view._layouts, strict=True))


def shown(engine: MAPPO, vec: Vector, steps: int) -> list[Any]:
    """The groups of each batch, as actors are shown them."""
    found: list[Any] = []
    look = engine.collector._view
    assert look is not None

    def note(batch: Any) -> Any:
        groups = look(batch)
        found.append(
            [(g.rows.observations.copy(), g.rows.final.copy(), g.rows.live.copy()) for g in groups]
        )
        return groups

    engine.collector._view = note
    vec.async_reset(1)
    for _ in range(steps):
        engine.collector.handle(vec.recv())
    return found


def test_dead_agents_are_zeros_to_the_critics_of_others_and_are_not_learned_from() -> None:
    engine, vec = engine_of(lambda: Mortal(alike=True), 1, state="observations", agent_ids=True)
    with vec:
        found = shown(engine, vec, 5)
    critic_layout = layouts_of(engine)["walker"]
    assert (critic_layout.size, critic_layout.actor_size) == (2 + 2 + 4, 4)
    rows = [groups[0][0] for groups in found]
    np.testing.assert_array_equal(rows[1][0], [1, 10, 1, 0, 1, 10, 1, 11])
    np.testing.assert_array_equal(rows[1][1], [1, 11, 0, 1, 1, 10, 1, 11])
    np.testing.assert_array_equal(rows[2][0], [2, 10, 1, 0, 2, 10, 0, 0])  # the other has died
    np.testing.assert_array_equal(rows[2][1], [0, 0, 0, 1, 2, 10, 0, 0])  # zeros and who it was
    np.testing.assert_array_equal(rows[4][0], [0, 10, 1, 0, 0, 10, 0, 11])  # the next episode
    # At the cut, walker_0 is valued where it ended; walker_1 was dead there and not newly born.
    np.testing.assert_array_equal(found[4][0][1][0], [4, 10, 1, 0, 4, 10, 0, 0])
    segments = engine.groups[0].actor.store
    assert segments._length.sum() + 3 * segments.complete == 4 + 2 + 2  # steps of the living


def test_a_state_of_the_environment_is_the_critics_and_so_is_its_last_one() -> None:
    engine, vec = engine_of(Mortal, 2, own_observation=False)
    with vec:
        found = shown(engine, vec, 5)
    walkers, tower = layouts_of(engine)["walker"], layouts_of(engine)["tower"]
    assert walkers.dtype == np.float32
    assert tower.dtype == np.uint8  # it sees a number and floats
    for name, critic_layout in layouts_of(engine).items():
        place = list(layouts_of(engine)).index(name)
        (part,) = critic_layout.rest

        def state(rows: Any, part: Any = part) -> list[float]:
            raw: list[float] = rows.view(np.uint8)[0, part.offset : part.end].view(np.float32)
            return list(raw)

        states = [state(found[t][place][0]) for t in range(5)]
        assert [time for time, _ in states] == [0, 1, 2, 3, 0]
        (_, fate), *_, (_, next_fate) = states
        assert fate > 0
        assert next_fate not in (0, fate)
        assert state(found[4][place][1]) == [4, fate]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_states_come_with_the_rows_of_their_environments(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    workers = {"num_workers": 3, "batch_size": 4} if backend == "process" else {}
    with make("team_toys:Mortal", 6, backend=backend, global_state=True, **workers) as vec:
        vec.async_reset(1)
        for _ in range(30):
            batch = vec.recv()
            walkers, tower = batch.groups
            assert batch.global_state.shape == (len(batch.env_ids), 2)
            assert tower.rows.global_state.shape == (len(batch.env_ids), 0)
            times = batch.global_state[:, 0]
            np.testing.assert_array_equal(walkers.rows.observations[::2, 0], times)
            ended = walkers.rows.truncations[::2]
            assert (walkers.rows.final_state[ended, 0] == 4).all()
            actions = tuple(np.zeros((len(group.agent_ids), 1), int) for group in batch.groups)
            vec.send(actions, tuple(group.agent_ids for group in batch.groups))
    with make("team_toys:Mortal", 1, backend="serial") as vec:
        vec.async_reset(1)
        assert vec.recv().global_state.shape == (1, 0)  # nobody asked


def test_critics_of_one_kind_see_agents_of_another() -> None:
    engine, vec = engine_of(Mortal, 2, state="observations")
    with vec:
        shown(engine, vec, 3)
    tower = engine.policies[list(layouts_of(engine)).index("tower")]
    assert isinstance(tower, CentralPolicy)
    (mine, walkers) = sorted(tower.layout.rest, key=lambda part: part.count)
    assert (mine.count, walkers.count) == (1, 2)
    state = tower.initial_state(2)
    rows = torch.from_numpy(tower.layout.zeros(2))
    before = tower(rows, state)
    floats = rows[:, walkers.offset : walkers.end].view(torch.float32)
    floats += 5.0
    after = tower(rows, state)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_settings_that_do_not_fit_are_refused() -> None:
    with make("simple_spread", 1) as vec, pytest.raises(UsageError, match=r"train\.state"):
        make_critic_layouts(vec.groups, MAPPOConfig(state="environment"))
    assert len(make_critic_layouts(vec.groups, MAPPOConfig(critic="local"))[0].rest) == 0
    assert make_critic_layouts(vec.groups, MAPPOConfig())[0].rest[0].count == 3
    cfg = read_config({"algo": "mappo", "train": {"critic": "local"}})
    assert isinstance(cfg.train, MAPPOConfig)
    assert cfg.train.emulation == {"global_state": False}


# ------------------------------------------------------------------ whole runs


CASES: dict[str, Any] = {
    "native": ("simple_spread", {"vec": {"num_envs": 8}}),
    "native lstm": ("simple_spread", {"vec": {"num_envs": 8}, "policy": {"core": "lstm"}}),
    "native apart": (
        "simple_spread",
        {"vec": {"num_envs": 8}, "train": {"share_parameters": False, "critic": "local"}},
    ),
    "kinds": ("speaker_listener", {"vec": {"num_envs": 8}, "policy": {"core": "gru"}}),
    "process": (
        "team_toys:Mortal",
        {"vec": {"num_envs": 8, "backend": "process", "num_workers": 2}},
    ),
    "process, observations": (
        "team_toys:Mortal",
        {
            "vec": {"num_envs": 8, "backend": "process", "num_workers": 2, "batch_size": 4},
            "train": {"state": "observations", "deterministic": True},
        },
    ),
}


def tensors_of(run: Any) -> dict[str, bytes]:
    path = run.latest()
    assert path is not None
    checkpoint = load_checkpoint(path)
    return {
        f"{file}.{name}": tensor.contiguous().numpy().tobytes()
        for file, named in checkpoint.tensors.items()
        for name, tensor in named.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_equals_never_stopped(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    env, given = CASES[case]
    steps = 4 * 7 * 8 * 3
    settings: dict[str, Any] = {"algo": "mappo", "seed": 3, "show": False, **given}
    settings["train"] = {"total_steps": steps, "horizon": 7, "epochs": 2} | given.get("train", {})
    whole = train(env, run={"folder": tmp_path, "name": "whole"}, **settings)

    def stop(trainer: Any, progress: Any) -> None:
        trainer.stopping = progress.updates == 2

    part = train(env, run={"folder": tmp_path, "name": "part"}, callbacks=[stop], **settings)
    assert part.status == "stopped"
    rest = resume("part", root=tmp_path, show=False)
    assert (rest.status, rest.steps) == ("finished", whole.steps)
    mine, theirs = tensors_of(rest.run), tensors_of(whole.run)
    assert "learner_0.value_norm" in mine
    assert [name for name in mine if mine[name] != theirs[name]] == []


def test_a_run_is_evaluated_without_any_state(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algo": "mappo", "vec": {"num_envs": 4, "backend": "serial"}}
    result = train(
        "team_toys:Mortal",
        train={"total_steps": 300, "horizon": 8},
        run={"folder": tmp_path, "name": "team", "evaluate_every": 100, "evaluation_episodes": 4},
        policy={"core": "lstm"},
        show=False,
        **settings,
    )
    assert result.run is not None
    _, policies = load_policies(result.run)
    for policy in policies:
        assert isinstance(policy, CentralPolicy)
        assert len(policy.critics) == 0
    assert len(evaluate(result.run, episodes=4).returns) >= 4
