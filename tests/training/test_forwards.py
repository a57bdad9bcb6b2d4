"""Who computes what policies say: chosen by a rule, recorded, and the same when a run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu import Layout, make, native
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.policies import Policy, PolicyConfig, make_policy
from fugu.rollout import forwards
from fugu.rollout.forwards import make_forward
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.training.config import resolve_config
from fugu.training.evaluate import Players, play
from fugu.training.session import resume, train
from fugu.training.trainer import Trainer

pytestmark = pytest.mark.skipif(not native.available, reason="the extension is not built")
SMALL: dict[str, Any] = {
    "vec": {"num_envs": 16},
    "train": {"total_steps": 4 * 256, "horizon": 16, "engine": "torch"},
}
GROUP = AgentGroup("agent", (0,), Layout.of(spaces.Box(-1, 1, (4,))), Layout.of(spaces.Discrete(2)))


def engine_for(policy: Policy, batch: int = 64) -> str:
    return make_forward(policy, GROUP.observation_layout, "auto", batch).engine


class Sorted(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.sort(-1).values


def test_small_batches_are_native_and_large_ones_are_not() -> None:
    policy = make_policy(GROUP, PolicyConfig())
    assert engine_for(policy, 1) == engine_for(policy, 1000) == "native"
    assert engine_for(policy, 100_000) == "torch"
    assert engine_for(make_policy(GROUP, PolicyConfig(hidden_size=2048, layers=3)), 64) == "torch"


def test_what_cannot_be_read_or_was_changed_stays_with_torch() -> None:
    assert engine_for(make_policy(GROUP, PolicyConfig(), encoder=Sorted())) == "torch"
    hooked, patched = (make_policy(GROUP, PolicyConfig()) for _ in range(2))
    hooked.encoder.register_forward_hook(lambda *_: None)
    patched.decoder.forward = nn.Linear(128, 3).forward  # type: ignore[method-assign]
    assert engine_for(hooked) == engine_for(patched) == "torch"

    class Mine(Policy):
        pass

    plain = make_policy(GROUP, PolicyConfig())
    parts = plain.encoder, plain.core, plain.decoder, plain.distribution
    mine = Mine(*parts)  # type: ignore[arg-type]
    assert engine_for(mine) == "torch"
    with pytest.raises(UsageError, match="policy.engine: given 'native' with a Mine"):
        make_forward(mine, GROUP.observation_layout, "native", 1)
    with pytest.raises(UsageError, match="cannot be taken apart: Sorted"):
        make_forward(
            make_policy(GROUP, PolicyConfig(), encoder=Sorted()),
            GROUP.observation_layout,
            "native",
            1,
        )


def trainer_of(**policy: Any) -> Trainer:
    sections = SMALL | {"policy": policy, "seed": 5}
    return Trainer(resolve_config("cartpole", overrides=sections))


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_both_engines_learn_alike(core: str) -> None:
    weights = []
    for engine in ("torch", "native"):
        trainer = trainer_of(engine=engine, core=core)
        try:
            assert trainer.algorithm.policy_engines == [engine]  # type: ignore[attr-defined]
            trainer.algorithm.start(0)
            trainer.update()
            weights.append([p.detach().clone() for p in trainer.policies[0].parameters()])
        finally:
            trainer.close()
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_new_weights_are_collected_with() -> None:
    trainer = trainer_of(engine="native", normalise=True)
    try:
        trainer.algorithm.start(0)
        trainer.update()
        trainer.update()
        trainer.algorithm.collect()
        policy, (actor,) = trainer.policies[0], [each.actor for each in trainer.algorithm.groups]  # type: ignore[attr-defined]
        rows, state = torch.randn(9, 4), policy.initial_state(9)
        with torch.no_grad():
            expected = policy(rows, state)
        for got, wanted in zip(actor.forward(rows, state), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    finally:
        trainer.close()


def engines_in(run: Run | None) -> Any:
    assert run is not None
    path = run.latest()
    assert path is not None
    return load_checkpoint(path).state["policy_engines"]


def test_a_choice_is_recorded_shown_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"show": False, "run": {"folder": tmp_path, "name": "one"}, **SMALL}
    begun = train("cartpole", **settings)
    assert engines_in(begun.run) == ["native"]
    assert main(["runs", "show", "one", "--root", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"] == {
        "engines": ["torch"],
        "policy_engines": ["native"],
    }
    assert main(["runs", "show", "one", "--root", str(tmp_path)]) == 0
    assert "policy engines: native" in capsys.readouterr().out
    monkeypatch.setattr(forwards, "SMALL", 0)  # what is chosen now is another
    more: Any = {"train": {"total_steps": 5 * 256}}
    assert engines_in(resume("one", root=tmp_path, show=False, **more).run) == ["native"]
    other = settings | {"run": {"folder": tmp_path, "name": "two"}}
    assert engines_in(train("cartpole", **other).run) == ["torch"]
    forced: Any = {"train": {"total_steps": 6 * 256}, "policy": {"engine": "torch"}}
    assert engines_in(resume("one", root=tmp_path, show=False, **forced).run) == ["torch"]


def test_a_run_of_before_goes_on_with_torch() -> None:
    trainer, later = trainer_of(), trainer_of()
    try:
        trainer.algorithm.start(0)
        trainer.update()
        tensors, state = trainer.algorithm.state_dict()
        assert state.pop("policy_engines") == ["native"]
        later.algorithm.load_state_dict(tensors, {**state, "steps": 256, "reset_seed": 0})
        assert later.algorithm.policy_engines == ["torch"]  # type: ignore[attr-defined]
    finally:
        trainer.close()
        later.close()


def test_without_the_core_a_run_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = make_policy(GROUP, PolicyConfig())
    monkeypatch.setattr(native, "available", False)
    assert engine_for(policy) == "torch"
    found = forwards.load_forward("native", policy, GROUP.observation_layout, 16)
    assert found.engine == "torch"
    assert "collected by the native forward pass" in caplog.text


@pytest.mark.parametrize("core", ["none", "gru"])
def test_players_of_both_engines_play_the_same_episodes(core: Any) -> None:
    with make("cartpole", 4) as vec:
        torch.manual_seed(1)
        policies = [make_policy(vec.groups[0], PolicyConfig(core=core))]
        assert Players(policies, vec, 0).engines == ["native"]
        found = [
            play(policies, vec, 8, greedy=False, seed=2, engine=engine)
            for engine in ("native", "torch", "native")
        ]
    assert found[0] == found[1] == found[2]
    assert len(np.unique(found[0].lengths)) > 1
