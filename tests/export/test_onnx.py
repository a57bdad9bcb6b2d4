"""ONNX files: what stands in them, who can run them, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from policy_kinds import KINDS, Kind, observations_of
from torch import nn

import fugu
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.export import PolicyFacts, load
from fugu.export.onnx_engine import make_engine
from fugu.export.onnx_writer import write_onnx
from fugu.nets.reading import read_policy
from fugu.policies import PolicyConfig, make_policy
from fugu.spaces import Layout

ACTIONS = spaces.Dict(
    go=spaces.Discrete(3, start=-7),
    keys=spaces.MultiBinary(3),
    pick=spaces.MultiDiscrete([[2, 5], [3, 3]], np.int32, start=[[1, 0], [0, 9]]),
    by=spaces.Box(np.float64([-1, -np.inf]), np.float64([3, 0.01]), dtype=np.float64),
    far=spaces.Box(-np.inf, np.inf, (2, 2), np.float16),
)
MANY = Kind("many", spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2, 2))), ACTIONS)
SQUASHED = Kind("squashed", action=ACTIONS, settings={"continuous": "tanh", "core": "gru"})


def kind_of(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)


def written(kind: Kind, path: Path) -> tuple[Any, Layout]:
    policy, layout = kind.make()
    write_onnx(read_policy(policy, layout), path, env="an-env", group="agent")
    return policy, layout


def test_a_file_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    policy, layout = written(SQUASHED, tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    told = {prop.key: prop.value for prop in model.metadata_props}
    assert told["fugu.version"] == fugu.__version__
    assert (told["fugu.env"], told["fugu.group"]) == ("an-env", "agent")
    facts = PolicyFacts.from_json(told["fugu.facts"], "here")
    assert facts == PolicyFacts(layout, policy.distribution.layout, "tanh", 16, 1)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    shapes = {each.name: each.shape for each in session.get_inputs()}
    assert shapes == {"observation": ["batch", 5], "state": ["batch", 16], "mask": ["batch", 22]}
    outputs = {each.name: (each.type, each.shape) for each in session.get_outputs()}
    assert outputs["action/pick"] == ("tensor(int32)", ["batch", 2, 2])
    assert outputs["action/by"] == ("tensor(double)", ["batch", 2])
    assert list(outputs)[:3] == ["params", "values", "next_state"]


@pytest.mark.parametrize("kind", [MANY, SQUASHED], ids=str)
def test_actions_are_ready_for_those_without_fugu(kind: Kind, tmp_path: Path) -> None:
    policy, layout = written(kind, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    rows, random = observations_of(layout, 40), np.random.default_rng(0)
    state = random.normal(size=(40, policy.state_size)).astype(np.float32)
    sampler = policy.distribution.sampler
    masks = random.random((40, sampler.num_choices)) < 0.5
    masks[:, np.cumsum([0, *sampler.choices[:-1]])] = True  # the first choice of each head
    feeds: dict[str, Any] = {"mask": masks}
    if kind is MANY:
        views = layout.views(rows)
        feeds |= {"observation/a": views["a"], "observation/b": views["b"]}
    else:
        feeds |= {"observation": rows, "state": state}
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, feeds), strict=True))
    with torch.no_grad():
        params, values, _ = policy(torch.from_numpy(rows), torch.from_numpy(state))
    np.testing.assert_allclose(found["values"], values, rtol=1e-5, atol=1e-5)
    samples, _ = sampler.sample(params.numpy(), masks, random, greedy=True)
    expected = policy.distribution.layout.views(sampler.to_rows(samples))
    assert set(found) - {"params", "values", "next_state"} == {f"action/{n}" for n in expected}
    for name, leaf in expected.items():
        mine = found[f"action/{name}"]
        assert mine.dtype == leaf.dtype
        if leaf.dtype.kind == "f":
            np.testing.assert_allclose(mine, leaf, rtol=1e-3 if name == "far" else 1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(mine, leaf)


def test_a_file_acts_where_there_is_no_torch(tmp_path: Path) -> None:
    policy, _ = written(kind_of("own-critic"), tmp_path / "policy.onnx")
    program = """
import json
import sys
for missing in ("torch", "onnx", "jax"):
    sys.modules[missing] = None  # an import of it fails
import numpy as np
import fugu.export
policy = fugu.export.load("policy.onnx", engine="onnx")
state = None
for step in range(3):
    action, value, state = policy.act(np.full(5, 0.1 * step, np.float32), state)
print(json.dumps([action["go"].tolist(), action["by"].tolist(), value, float(state.sum())]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    state = policy.initial_state(1)
    for step in range(3):
        seen = torch.full((1, 5), float(np.float32(0.1 * step)))
        with torch.no_grad():
            params, values, state = policy(seen, state)
    samples, _ = policy.distribution.sample(params, None, np.random.default_rng(), greedy=True)
    expected = policy.distribution.layout.unpack(policy.distribution.to_rows(samples)[0])
    go, by, value, total = json.loads(done.stdout)
    assert go == expected["go"].tolist()
    np.testing.assert_allclose(by, expected["by"], atol=1e-5)
    np.testing.assert_allclose([value, total], [values[0, 0], state.sum()], atol=1e-4)


def test_weights_that_are_too_many_stand_beside(tmp_path: Path) -> None:
    policy, layout = kind_of("lstm").make()
    net = read_policy(policy, layout)
    files = write_onnx(net, tmp_path / "big.onnx", most_bytes=1_000)
    assert [file.name for file in files] == ["big.onnx", "big.onnx.weights"]
    small = write_onnx(net, tmp_path / "small.onnx")
    assert files[1].stat().st_size > files[0].stat().st_size / 4
    rows, state = observations_of(layout, 3), np.ones((3, policy.state_size), np.float32)
    one, other = (load(file).engine.forward(rows, state) for file in (files[0], *small))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    write_onnx(net, tmp_path / "big.onnx", most_bytes=1_000)  # once more: nothing is appended
    assert files[1].stat().st_size < net.num_weights * 4 + 64 * len(net.operations)


def test_leaves_that_a_layer_reads_as_one_row() -> None:
    space = spaces.Dict(a=spaces.Box(-1, 1, (2, 2)), b=spaces.Box(-1, 1), c=spaces.Box(-1, 1, ()))
    layouts = Layout.of(space), Layout.of(spaces.Discrete(2))
    group = AgentGroup("agent", (0,), *layouts)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
    policy = make_policy(group, PolicyConfig(), encoder=encoder)
    rows = observations_of(layouts[0], 7)
    state = np.zeros((7, 0), np.float32)
    params, _, _ = make_engine(read_policy(policy, layouts[0])).forward(rows, state)
    with torch.no_grad():
        expected, _, _ = policy(torch.from_numpy(rows), torch.from_numpy(state))
    np.testing.assert_allclose(params, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (0,)), spaces.Tuple((spaces.Box(-1, 1, (0, 2)),))]
)
def test_an_observation_without_numbers_still_has_a_batch(space: Any) -> None:
    layouts = Layout.of(space), Layout.of(spaces.Discrete(2))
    policy = make_policy(AgentGroup("agent", (0,), *layouts), PolicyConfig())
    engine = make_engine(read_policy(policy, layouts[0]))
    params, values, _ = engine.forward(layouts[0].zeros(4), np.zeros((4, 0), np.float32))
    with torch.no_grad():
        expected, _, _ = policy(torch.zeros(4, 0), torch.zeros(4, 0))
    np.testing.assert_allclose(params, expected, atol=1e-6)
    assert values.shape == (4, 1)


# ---------------------------------------------------------------------- refused


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    written(kind_of("mlp"), tmp_path / "policy.onnx")
    whole = (tmp_path / "policy.onnx").read_bytes()
    for name, content in (("cut", whole[: len(whole) // 2]), ("empty", b""), ("text", b"hello")):
        (tmp_path / f"{name}.onnx").write_bytes(content)
        with pytest.raises(UsageError, match=rf"{name}.onnx: given a file that onnxruntime cannot"):
            load(tmp_path / f"{name}.onnx")


def test_somebody_elses_model_is_refused(tmp_path: Path) -> None:
    written(kind_of("mlp"), tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    kept = list(model.metadata_props)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UsageError, match="without the layouts of a policy"):
        load(tmp_path / "other.onnx")
    for prop in kept:
        if prop.key == "fugu.facts":
            prop.value = prop.value.replace('"format": 1', '"format": 99')
    model.metadata_props.extend(kept)
    onnx.save(model, tmp_path / "newer.onnx")
    with pytest.raises(UsageError, match="format 99, of which this fugu knows 1"):
        load(tmp_path / "newer.onnx")


def test_facts_of_another_policy_are_refused(tmp_path: Path) -> None:
    written(kind_of("mlp"), tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    for prop in model.metadata_props:
        if prop.key == "fugu.facts":
            prop.value = prop.value.replace('"state_size": 0', '"state_size": 3')
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UsageError, match=r"with the inputs .* allowed: .*'state': \[3\]"):
        load(tmp_path / "other.onnx")


def test_other_names_of_files_are_refused(tmp_path: Path) -> None:
    policy, layout = kind_of("mlp").make()
    with pytest.raises(UsageError, match=r"given '.*policy.pb'; allowed: FILE.onnx"):
        write_onnx(read_policy(policy, layout), tmp_path / "policy.pb")
    with pytest.raises(UsageError, match="allowed: a file that exists"):
        load(tmp_path / "none.onnx")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "policy.onnx").write_bytes(b"")
    program = """
import sys
sys.modules[sys.argv[1]] = None
import fugu.export
from fugu.core.errors import MissingExtraError
try:
    if sys.argv[1] == "onnxruntime":
        fugu.export.load("policy.onnx")
    else:
        import fugu.export.jax_net
except MissingExtraError as error:
    print(error)
"""
    for package, extra in (("onnxruntime", "export"), ("jax", "jax")):
        done = subprocess.run(
            [sys.executable, "-c", program, package],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"this needs the package '{package}'" in done.stdout, done.stderr
        assert f"fugu-rl[{extra}]" in done.stdout
