"""`fugu.export.load`: runs of every algorithm act as they do in evaluations."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch import Tensor, nn

import fugu
from fugu.core.errors import UsageError
from fugu.data.recording import record_episodes
from fugu.export import LoadedPolicy, load
from fugu.policies import make_policy
from fugu.store.run import Run
from fugu.training.evaluate import Players, load_groups
from fugu.training.session import train

FEW: dict[str, Any] = {"vec": {"num_envs": 4, "backend": "serial"}}
SHORT: dict[str, Any] = {"train": {"total_steps": 300, "horizon": 8}}
LSTM: dict[str, Any] = {"policy": {"core": "lstm", "hidden_size": 16}}
DREAMER: dict[str, Any] = {
    "algo": "dreamer",
    "policy": {
        "deter": 16, "hidden": 8, "stoch": 4, "classes": 4, "blocks": 4, "units": 8, "layers": 1,
        "depth": 2,
    },
    "train": {
        "batch_size": 3, "batch_length": 6, "imagination_starts": 3, "imagination_length": 3,
        "prefill": 64, "update_every": 16, "train_ratio": 4.0, "replay_size": 2000,
        "total_steps": 100,
    },
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "ppo": {"env": "cartpole", **SHORT, **LSTM},
    "gymnasium": {"env": "CartPole-v1", **SHORT},
    "safe_ppo": {"env": "hazard_grid", "algo": "safe_ppo", **SHORT},
    "grpo": {
        "env": "bandit",
        "algo": "grpo",
        "vec": {"group_size": 4, "num_envs": 4, "backend": "serial"},
        "train": {"total_steps": 128, "teams": 4, "minibatches": 1},
    },
    "dreamer": {"env": "cartpole", **DREAMER},
}
NAMED: dict[str, Any] = {"env": "simple_spread", "algo": "mappo"}
CASES["mappo"] = {**NAMED, **LSTM, "train": {**SHORT["train"], "agent_ids": False}}
CASES["mappo-named"] = {**NAMED, "train": {**SHORT["train"], "agent_ids": True}}
CASES["mappo-apart"] = {**NAMED, "train": {**SHORT["train"], "share_parameters": False}}
TAKEN_APART = ("ppo", "gymnasium", "safe_ppo", "mappo", "grpo")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def run_of(root: Path, name: str) -> Run:
    """A run of that case, trained when it is first asked for."""
    if not (root / name).exists():
        case = {**FEW, **CASES[name]}
        train(case.pop("env"), show=False, run={"folder": root, "name": name}, **case)
    return Run(root / name)


def follow(run: Run, loaded: LoadedPolicy, steps: int = 20) -> int:
    """Let a loaded policy do what players do; how often actions were compared."""
    cfg, groups = load_groups(run)
    compared = 0
    with fugu.make(cfg.env, 3, backend="serial", env_kwargs=cfg.env_kwargs) as vec:
        players = Players([policy for _, policy in groups], vec, 0, engine="torch")
        state = loaded.initial_state(3 * vec.groups[0].num_agents)
        vec.async_reset(0)
        for _ in range(steps):
            batch = vec.recv()
            rows, agents = batch.groups[0].rows, batch.groups[0].agent_ids
            actions = players(batch)
            state[agents[rows.terminations | rows.truncations]] = 0.0
            found, _, after = loaded.act_rows(
                rows.observations,
                state[agents],
                rows.action_masks,
                agents=agents,
                rewards=rows.rewards,
            )
            live = rows.live
            np.testing.assert_allclose(found[live], actions[live], rtol=1e-5, atol=1e-5)
            compared += int(live.sum())
            state[agents] = after
            vec.send(actions)
    return compared


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_policy_acts_as_in_an_evaluation(case: str, root: Path) -> None:
    assert follow(run_of(root, case), load(root / case)) >= 60


@pytest.mark.parametrize("case", TAKEN_APART)
def test_what_can_be_taken_apart_acts_alike_elsewhere(case: str, root: Path) -> None:
    assert follow(run_of(root, case), load(case, "onnx", root=root)) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ppo", "mappo-named", "mappo-apart", "dreamer"])
def test_torch_compiles_any_policy(case: str, root: Path) -> None:
    assert follow(run_of(root, case), load(case, "compile", root=root)) >= 60


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("dreamer", "cannot be taken apart: DreamerAgent.*Use the engine torch or compile"),
        ("mappo-named", "knows who an agent is.*engines torch and compile"),
        ("mappo-apart", "knows who an agent is.*engines torch and compile"),
    ],
)
def test_what_cannot_be_taken_apart_says_so(case: str, message: str, root: Path) -> None:
    run_of(root, case)
    with pytest.raises(UsageError, match=message):
        load(case, "onnx", root=root)


def test_a_decision_transformer_is_told_what_it_did_and_earned(root: Path, tmp_path: Path) -> None:
    record_episodes("cartpole", tmp_path / "data", episodes=8, copies=4)
    train(
        "cartpole",
        algo="decision_transformer",
        policy={"hidden_size": 16, "blocks": 1, "window": 5},
        train={"data": str(tmp_path / "data"), "batch_size": 8, "batches": 4, "total_steps": 200},
        run={"folder": root, "name": "asked"},
        show=False,
    )
    loaded = load("asked", root=root)
    assert follow(Run(root / "asked"), loaded) >= 60
    seen = np.zeros(4, np.float32)
    _, _, state = loaded.act(seen)
    (_, _, one), (_, _, other) = (loaded.act(seen, state, reward=r) for r in (0.0, 50.0))
    assert (one != other).any()


def test_agents_are_told_apart(root: Path) -> None:
    run_of(root, "mappo-apart")
    loaded = load("mappo-apart", root=root)
    rows = loaded.facts.observation.zeros(3) + np.float32(0.5)
    engine = loaded.engine
    looked = engine.look(rows, np.arange(3))  # type: ignore[attr-defined]
    params, _, _ = engine.forward(looked, loaded.initial_state(3))
    assert len(np.unique(params, axis=0)) == 3
    assert loaded.facts.num_critics == 0
    assert np.isnan(loaded.act(rows[0], agent=2)[1])


def test_one_group_of_several_is_named(root: Path) -> None:
    train("speaker_listener", show=False, run={"folder": root, "name": "two"}, **FEW, **SHORT)
    with pytest.raises(UsageError, match="'two' has several; allowed: one of speaker, listener"):
        load("two", root=root)
    with pytest.raises(UsageError, match="given 'talker'; allowed: speaker, listener"):
        load("two", root=root, group="talker")
    speaker, listener = (load("two", root=root, group=name) for name in ("speaker", "listener"))
    assert speaker.facts.observation != listener.facts.observation


# ---------------------------------------------------------------------- places


def test_a_run_is_found_by_whatever_names_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(root, "ppo")
    checkpoint = run.latest()
    assert checkpoint is not None
    rows = load(run).facts.observation.zeros(2)
    expected = load(run).act_rows(rows)[1]
    monkeypatch.chdir(checkpoint.parent)
    for path in (run.folder, str(run.folder), checkpoint, Path(checkpoint.name)):
        assert (load(path).act_rows(rows)[1] == expected).all()
    assert load(run, best=True).facts == load(run).facts
    assert "torch" in repr(load(run))


def test_places_that_are_none_are_refused(root: Path, tmp_path: Path) -> None:
    run = run_of(root, "ppo")
    checkpoint = run.latest()
    assert checkpoint is not None
    lost = shutil.copytree(checkpoint, tmp_path / "alone" / "checkpoints" / "step_1")
    shutil.rmtree(tmp_path / "alone" / "checkpoints" / "nothing", ignore_errors=True)
    shutil.move(lost, tmp_path / "step_1")
    with pytest.raises(UsageError, match="a checkpoint outside of its run"):
        load(tmp_path / "step_1")
    with pytest.raises(UsageError, match="is no run in"):
        load("nobody", root=root)
    with pytest.raises(UsageError, match="best: given with a checkpoint"):
        load(checkpoint, best=True)
    with pytest.raises(UsageError, match="given 'troch'; nearest: 'torch'"):
        load(run, "troch")


def test_an_exported_file_takes_no_settings_of_a_run(root: Path, tmp_path: Path) -> None:
    from fugu.export.loading import find
    from fugu.export.onnx_writer import write_onnx

    path = tmp_path / "policy.onnx"
    write_onnx(find(run_of(root, "ppo")).net(), path)
    assert load(path).name == "onnx"
    with pytest.raises(UsageError, match=r"given 'jax' for .*policy.onnx'; allowed: 'onnx'"):
        load(path, "jax")
    with pytest.raises(UsageError, match="group: given with .* allowed: with a run"):
        load(path, group="agent")


class Sorted(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.sort(-1).values


def cartpole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def test_parts_of_ones_own_come_with_the_call(tmp_path: Path) -> None:
    factory = partial(make_policy, encoder=Sorted())
    given: dict[str, Any] = {"policy_factory": factory}
    result = train(
        lambda: cartpole(), show=False, run={"folder": tmp_path}, **given, **FEW, **SHORT
    )
    with pytest.raises(UsageError, match="env: given a run that was trained on something to call"):
        load(result.run, **given)
    loaded = load(result.run, env=cartpole, **given)
    assert isinstance(loaded.facts.action.space, spaces.Discrete)
    with pytest.raises(UsageError, match="cannot be taken apart: Sorted"):
        load(result.run, "onnx", env=cartpole, **given)
