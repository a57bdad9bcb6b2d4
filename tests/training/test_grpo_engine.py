"""GRPO's engine: teams begin alike each time, faults do not mix them, runs resume exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.grpo import GRPOLearner
from fugu.algos.preferences import PreferenceConfig, compare, train_reward_model
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.rollout.actor import sample_episodes
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.training.evaluate import evaluate
from fugu.training.session import resume, train
from fugu.vector import make

pytestmark = pytest.mark.timeout(200)
SEQUENCES = "sequence_task:SequenceTask"


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("cartpole", "native"),
        ("CartPole-v1", "serial"),
        ("CartPole-v1", "process"),
        ("maze", "native"),
    ],
)
def test_groups_begin_every_episode_alike(name: str, backend: Any) -> None:
    """Copies end at different times: each episode's first sight is compared by its number."""
    firsts: dict[int, list[list[float]]] = {env: [] for env in range(4)}
    random = np.random.default_rng(0)
    kwargs = {"max_steps": 20} if name == "maze" else {}
    with make(
        name,
        4,
        backend=backend,
        group_size=2,
        env_kwargs=kwargs,
        num_workers=2 if backend != "serial" else None,
    ) as vec:
        vec.async_reset(7)
        begun = np.ones(4, np.bool_)
        while min(map(len, firsts.values())) < 5:
            batch = vec.recv()
            ended = batch.terminations | batch.truncations | begun
            begun[:] = False
            for env in np.flatnonzero(ended):
                firsts[int(env)].append(batch.observations[env].tolist())
            choices = vec.action_layout.space.n
            vec.send(random.integers(choices, size=(4, 1)))
    for number in range(5):
        seen = [firsts[env][number] for env in range(4)]
        assert seen[0] == seen[1]
        assert seen[2] == seen[3]
        assert seen[0] != seen[2]
    assert len({json.dumps(first) for first in firsts[0]}) > 1


SMALL: dict[str, Any] = {"teams": 4, "epochs": 2, "minibatches": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("cartpole", {"vec": {"num_envs": 16, "group_size": 4}}),
    "lstm": (
        "cartpole",
        {"vec": {"num_envs": 16, "group_size": 4}, "policy": {"core": "lstm", "hidden_size": 16}},
    ),
    "process": (
        "CartPole-v1",
        {"vec": {"num_envs": 16, "group_size": 4, "backend": "process", "num_workers": 2}},
    ),
    "tokens": (
        SEQUENCES,
        {
            "vec": {"num_envs": 16, "group_size": 4, "backend": "serial"},
            "policy": {"core": "tokens", "hidden_size": 16},
        },
    ),
}


def weights(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    path = run.latest()
    assert path is not None
    checkpoint = load_checkpoint(path)
    return checkpoint.tensors, checkpoint.state


@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_equals_never_stopped(case: str, tmp_path: Path) -> None:
    name, settings = CASES[case]
    options: dict[str, Any] = {
        "algo": "grpo",
        "show": False,
        "seed": 3,
        "train": SMALL | {"beta": 0.01, "total_steps": 3000, "dynamic_sampling": True},
        **settings,
    }
    whole = train(name, run={"folder": tmp_path, "name": "whole"}, **options)

    def stop(trainer: Any, progress: Any) -> None:
        trainer.stopping = progress.updates == 4

    part = train(name, run={"folder": tmp_path, "name": "part"}, callbacks=[stop], **options)
    assert part.status == "stopped"
    assert part.steps < 3000
    rest = resume("part", root=tmp_path, show=False)
    assert rest.status == "finished"
    assert rest.run is not None
    assert whole.run is not None
    (mine, state), (theirs, other) = weights(rest.run), weights(whole.run)
    assert state["random"] == other["random"]
    for file in theirs:
        assert sorted(mine[file]) == sorted(theirs[file])
        for key, value in theirs[file].items():
            assert torch.equal(mine[file][key], value), f"{file}.{key}"
    assert rest.score == whole.score


def test_runs_are_evaluated_by_the_command(tmp_path: Path, capsys: Any) -> None:
    flags = ["--algo", "grpo", "--quiet", "--run.folder", str(tmp_path), "--run.name", "one"]
    flags += ["--vec.num-envs", "16", "--vec.group-size", "4", "--train.teams", "4"]
    assert main(["train", "cartpole", *flags, "--train.total-steps", "2000"]) == 0
    found = evaluate("one", root=tmp_path, episodes=16)
    assert len(found.returns) == 16
    capsys.readouterr()
    assert main(["eval", "one", "--runs", str(tmp_path), "--episodes", "16", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["mean_return"] == pytest.approx(np.mean(found.returns))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"vec": {"group_size": 1}}, "allowed with grpo: 2 or more"),
        ({"vec": {"num_envs": 16, "batch_size": 8}}, "all 16 copies"),
    ],
)
def test_teams_that_cannot_be_are_refused(settings: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        train("cartpole", algo="grpo", keep=False, show=False, **settings)


class Faulty(gymnasium.Env[Any, Any]):
    """Shows where it began, and now and then breaks."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (1,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin somewhere."""
        super().reset(seed=seed)
        self._chance = np.random.default_rng()
        self._begun = self.np_random.random(1).astype(np.float32)
        return self._begun, {}

    def step(self, action: Any) -> Any:
        """Break, end or go on."""
        if self._chance.random() < 0.01:
            raise RuntimeError("broken by chance")
        return self._begun, float(action), self._chance.random() < 0.3, False, {}


def test_a_fault_does_not_mix_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    """All teams that reach the learner began alike, however many copies were restarted."""
    teams: list[list[float]] = []
    faults: list[int] = []
    offer = GRPOLearner.offer

    def noted(self: GRPOLearner, team: Any) -> None:
        teams.append([float(episode.observations[0, 0]) for episode in team])
        offer(self, team)

    def look(trainer: Any, progress: Any) -> None:
        faults.append(trainer.algorithm.collector.mended)

    monkeypatch.setattr(GRPOLearner, "offer", noted)
    monkeypatch.setattr(
        "fugu.training.trainer.make", lambda *a, **k: make(*a, **{**k, "max_restarts": 10_000})
    )
    train(
        Faulty,
        algo="grpo",
        keep=False,
        show=False,
        callbacks=[look],
        vec={"num_envs": 8, "group_size": 4, "backend": "serial"},
        train=SMALL | {"total_steps": 4000},
    )
    assert faults[-1] >= 5
    assert len(teams) > 20
    assert all(len(set(team)) == 1 for team in teams)


def test_a_reward_model_is_learned_from_and_the_true_return_told(tmp_path: Path) -> None:
    group, episodes = sample_episodes("cartpole", 40)
    comparisons = compare(episodes, 60, np.random.default_rng(0))
    model, _ = train_reward_model(group, comparisons, PreferenceConfig(epochs=2))
    model.save(tmp_path / "reward")
    seen: list[tuple[float, float]] = []

    def look(trainer: Any, progress: Any) -> None:
        seen.append((progress.losses["learned_return"], progress.episodes["episode_return"]))

    train(
        "cartpole",
        algo="grpo",
        keep=False,
        show=False,
        callbacks=[look],
        vec={"num_envs": 16, "group_size": 4},
        train=SMALL | {"total_steps": 2000, "reward_model": tmp_path / "reward"},
    )
    assert all(true > 5 and true == pytest.approx(true) for _, true in seen)
    assert all(abs(learned - true) > 1e-3 for learned, true in seen)


def test_recorded_episodes_are_their_seeds_alone() -> None:
    found = [sample_episodes("cartpole", 5, seed=seed)[1] for seed in (1, 1, 2)]
    rewards = [[e.observations.tolist() for e in episodes] for episodes in found]
    assert rewards[0] == rewards[1] != rewards[2]
