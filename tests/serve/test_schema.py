"""The schema says what is taken, and values come through JSON as they are packed."""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import json
import random
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from policy_kinds import ITEMS, MIXED, SEQUENCES, TREE
from serving import BY_NAME, as_client, load_kind

from fugu import Layout
from fugu.core.errors import PackError
from fugu.export import PolicyFacts
from fugu.serve.fields import FieldError
from fugu.serve.messages import BodyError, Messages
from fugu.serve.passes import Passes
from fugu.serve.schema import example, to_plain, value_schema
from fugu.serve.values import read_row
from fugu.spaces.as_json import OpenText

SPACES: dict[str, Space[Any]] = {
    "tree": TREE,
    "sequences": SEQUENCES,
    "items": ITEMS,
    "mixed": MIXED,
    "scalar": spaces.Box(-1, 1, ()),
    "half": spaces.Box(-1, 1, (2,), np.float16),
    "wide": spaces.Box(0, 2**40, (2,), np.uint64),
    "discrete": spaces.Discrete(3, start=5),
    "varied": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 7]]),
    "alike": spaces.MultiDiscrete([[3, 3], [3, 3]]),
    "text": spaces.Text(5, min_length=2, charset="a]^-\\b"),
    "open": spaces.Dict(mission=OpenText()),
    "stacked": spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True),
    "stacked-tree": spaces.Sequence(spaces.Dict(a=spaces.Discrete(3)), stack=True),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    "nodes": spaces.Dict(g=spaces.Graph(spaces.Discrete(4), None)),
    "keys": spaces.Dict({"a b": spaces.Discrete(2), "c": spaces.Tuple((spaces.Discrete(2),))}),
    "empty": spaces.Dict(none=spaces.Box(0, 1, (0,)), also=spaces.Tuple(())),
}
LAYOUTS = {name: Layout.of(space, limits=5) for name, space in SPACES.items()}
each_space = pytest.mark.parametrize("name", list(SPACES))


def draw(space: Space[Any]) -> Any:
    """A value of a space; not too large a one, of a graph."""
    match space:
        case OpenText():
            return "übermut"[: space.np_random.integers(3)]
        case spaces.Graph():
            nodes = int(space.np_random.integers(1, 5))
            linked = space.edge_space is not None and nodes > 1
            return space.sample(num_nodes=nodes, num_edges=nodes if linked else None)
        case spaces.Dict():
            return {key: draw(part) for key, part in space.spaces.items()}
    return space.sample()


def sample(layout: Layout) -> tuple[Any, Any]:
    """A value that fits, and its row."""
    row = layout.zeros()
    for _ in range(1000):
        value = draw(layout.space)
        with contextlib.suppress(PackError):  # some sequences are too long
            layout.pack(value, row)
            return value, row
    raise AssertionError(f"{layout} has no value")


@each_space
def test_values_come_through_json_as_they_are_packed(name: str) -> None:
    layout = LAYOUTS[name]
    layout.space.seed(1)
    schema = value_schema(layout)
    Draft202012Validator.check_schema(schema)
    valid = Draft202012Validator(schema)
    for _ in range(30):
        value, row = sample(layout)
        sent = json.loads(json.dumps(as_client(layout.space, value)))
        valid.validate(sent)
        read = layout.zeros()
        read_row(layout, sent, "observation", read)
        np.testing.assert_array_equal(read, row)


@each_space
def test_the_example_is_a_value(name: str) -> None:
    layout = LAYOUTS[name]
    shown = json.loads(json.dumps(example(layout)))
    Draft202012Validator(value_schema(layout)).validate(shown)
    read_row(layout, shown, "observation", layout.zeros())


JUNK = [None, True, "x", -1, 10**6, 0.5, [], {}, [[1]], {"index": 9, "value": 0}, -(2**70)]


def mutate(tree: Any, chance: random.Random) -> Any:
    """The tree with one thing changed somewhere."""
    if isinstance(tree, list) and tree and chance.random() < 0.8:
        at = chance.randrange(len(tree))
        match chance.randrange(4):
            case 0:
                del tree[at]
            case 1:
                tree.insert(at, copy.deepcopy(tree[at]))
            case _:
                tree[at] = mutate(tree[at], chance)
        return tree
    if isinstance(tree, dict) and tree and chance.random() < 0.9:
        key = chance.choice(list(tree))
        match chance.randrange(4):
            case 0:
                del tree[key]
            case 1:
                tree["new"] = tree[key]
            case _:
                tree[key] = mutate(tree[key], chance)
        return tree
    return copy.deepcopy(chance.choice(JUNK))


def refusal(layout: Layout, sent: Any) -> FieldError | None:
    try:
        read_row(layout, sent, "observation", layout.zeros())
    except FieldError as error:
        return error
    return None


@each_space
def test_the_schema_takes_what_the_server_takes(name: str) -> None:
    layout, chance = LAYOUTS[name], random.Random(2)
    layout.space.seed(3)
    valid, refused = Draft202012Validator(value_schema(layout)), 0
    for _ in range(150):
        value, _ = sample(layout)
        sent = mutate(as_client(layout.space, value), chance)
        error = refusal(layout, sent)
        if error is None:
            assert valid.is_valid(sent), sent
            continue
        refused += 1
        assert error.field.startswith("observation"), error
        beyond = ("links", "a number of float", "as many links", "indices of")  # a schema's words
        if not error.allowed.startswith(beyond):
            assert not valid.is_valid(sent), (sent, error)
    assert refused > 20


@pytest.mark.parametrize("name", ["tree", "own-critic", "lstm", "nature", "squashed", "no-critic"])
def test_requests_and_answers_fit_the_schema(name: str) -> None:
    policy = load_kind(name)
    facts, messages = policy.facts, Messages(policy.facts, 4)
    schema = json.loads(json.dumps(messages.schema()))
    Draft202012Validator.check_schema(schema)
    facts.observation.space.seed(0)
    state = policy.initial_state()
    requests = Draft202012Validator(schema)
    answers = Draft202012Validator({"$ref": "#/$defs/answer", "$defs": schema["$defs"]})
    several = Draft202012Validator({"$ref": "#/$defs/answers", "$defs": schema["$defs"]})
    for _ in range(3):
        seen = as_client(facts.observation.space, facts.observation.space.sample())
        choices = policy.sampler.num_choices
        one = {
            "observation": seen,
            "state": base64.b64encode(state.tobytes()).decode() if state.size else None,
            "mask": [1] * choices if choices else None,
            "reward": 0.5,
            "agent": 0,
            "greedy": False,
            "seed": 3,
        }
        two = {"observations": [seen, seen], "states": [one["state"], None], "masks": None}
        for request, shape in ((one, answers), (two, several)):
            requests.validate(request)
            ask = messages.read(json.dumps(request).encode())
            (answer,) = Passes(policy).answer([ask])
            shape.validate(json.loads(messages.write(ask, answer)))  # type: ignore[arg-type]
    for wrong in ({}, {"observation": seen, "observations": [seen]}, {"observations": []}):
        assert not requests.is_valid(wrong)
        with pytest.raises(FieldError):
            messages.read(json.dumps(wrong).encode())


def test_arrays_may_be_base64_of_their_bytes() -> None:
    layout = BY_NAME["nature"].make()[1]
    layout.space.seed(0)
    image = layout.space.sample()
    rows = layout.zeros(2)
    read_row(layout, image.tolist(), "observation", rows[0])
    packed = base64.b64encode(image.tobytes()).decode()
    read_row(layout, packed, "observation", rows[1])
    np.testing.assert_array_equal(*rows)
    assert Draft202012Validator(value_schema(layout)).is_valid(packed)
    floats = Layout.of(spaces.Box(-1, 1, (2,)))
    for wrong, word in [
        (np.float32([0, np.nan]).tobytes(), r"observation\[1\]: given NaN; allowed: a finite"),
        (np.float32([0]).tobytes(), "base64 of 4 bytes; allowed: base64 of the 8 bytes"),
    ]:
        with pytest.raises(FieldError, match=word):
            read_row(floats, base64.b64encode(wrong).decode(), "observation", floats.zeros())


@pytest.mark.parametrize(
    ("name", "sent", "message"),
    [
        ("items", [[0, 0, 0]] * 5, "observation: given 5 items; allowed: a list of 6 x 3 numbers"),
        (
            "items",
            [[0, 0, 0]] * 5 + [[0, 0]],
            "observation[5]: given 2 items; allowed: a list of 3",
        ),
        ("items", [[0, 0, 0]] * 5 + [3], "observation[5]: given 3; allowed: a list of 3 numbers"),
        ("items", [[0, 0, True]] * 6, "observation[0][2]: given true; allowed: a number"),
        ("items", [[0, 0, "1"]] * 6, 'observation[0][2]: given "1"; allowed: a number'),
        ("items", [[0, 0, None]] * 6, "observation[0][2]: given null; allowed: a number"),
        ("items", [[0, [0], 0]] * 6, "observation[0][1]: given a list of 1 items; allowed: a num"),
        ("items", "zzz", 'observation: given "zzz" ('),
        ("scalar", float("inf"), "observation: given Infinity; allowed: a finite number"),
        ("scalar", 1e300, "observation: given 1e+300; allowed: a number of float32"),
        ("scalar", 10**400, "observation: given an integer of very many digits; allowed: a finite"),
        ("half", [0, 1e5], "observation[1]: given 100000.0; allowed: a number of float16"),
        ("wide", [0, -1], "observation[1]: given -1; allowed: an integer from 0 to 1844"),
        ("wide", [0, 0.5], "observation[1]: given 0.5; allowed: an integer"),
        ("discrete", 8, "observation: given 8; allowed: an integer from 5 to 7"),
        ("discrete", 10**30, "observation: given 1000000000000000000000000000000; allowed: an int"),
        ("varied", [[1, 0], [4, 7]], "observation[1][0]: given 4; allowed: an integer from 0 to 3"),
        ("text", "a", 'observation: given "a"; allowed: a string of 2 to 5'),
        ("text", "axa", 'observation: given "axa"; allowed: a string'),
        ("open", {"mission": "\ud800"}, 'observation.mission: given "\\ud800"; allowed'),
        ("open", {"mission": "x" * 99}, 'observation.mission: given "xxxx'),
        ("stacked", [[0, 0], [0, "a"]], 'observation[1][1]: given "a"; allowed: a number'),
        ("stacked", [[0, 0]] * 6, "observation: given 6 items; allowed: a list of 0 to 5 items"),
        ("graph", {"nodes": [[0, 0]], "edges": [1]}, "observation.edge_links: given null; allowed"),
        (
            "graph",
            {"nodes": [[0, 0]], "edges": [1], "edge_links": [[0, 1]]},
            "observation.links: given links from 0 to 1; allowed: indices of its 1 nodes",
        ),
        ("keys", {"a b": 2, "c": [0]}, 'observation["a b"]: given 2; allowed: an integer from 0'),
        ("keys", {"a b": 0, "c": [0], "b": 1}, "observation.b: given a key that is not known"),
        ("keys", {"a b": 0}, "observation.c: given nothing; allowed: a value, which is required"),
        ("keys", {"a b": 0, "c": [0, 1]}, "observation.c: given 2 items; allowed: a list of 1"),
        ("keys", 7, "observation: given 7; allowed: an object with the keys a b, c"),
    ],
)
def test_what_does_not_fit_is_named(name: str, sent: Any, message: str) -> None:
    layout = LAYOUTS[name]
    with pytest.raises(FieldError) as caught:
        read_row(layout, sent, "observation", layout.zeros())
    assert str(caught.value).startswith(message), caught.value


MLP = {"observation": [0.0] * 5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "observation: given nothing"),
        ([], "body: given a list of 0 items; allowed: an object with the keys observation"),
        (MLP | {"stat": None}, "stat: given a key that is not known; allowed: observation, state"),
        (MLP | {"state": 3}, "state: given 3; allowed: null, or the state of the answer before"),
        (MLP | {"state": "AAAA"}, "state: given base64 of 3 bytes; allowed: base64 of the 128"),
        (MLP | {"state": "ÄÖ"}, "state: given"),
        (MLP | {"state": [0.0] * 32}, "state: given a list of 32 items"),
        (MLP | {"mask": [1, 1, 1]}, "mask: given 3 items; allowed: a list of 4 items"),
        (MLP | {"mask": [1, 1, 1, 2]}, "mask[3]: given 2; allowed: true or false"),
        (MLP | {"mask": [0] * 4}, "mask: given nothing allowed of the choices 0 to 3"),
        (MLP | {"greedy": 1}, "greedy: given 1; allowed: true or false"),
        (MLP | {"seed": -1}, "seed: given -1; allowed: an integer from 0"),
        (MLP | {"seed": 2**63}, "seed: given 9223372036854775808; allowed"),
        (MLP | {"seed": "a"}, 'seed: given "a"; allowed: an integer'),
        (MLP | {"agent": 0.5}, "agent: given 0.5; allowed: an integer"),
        (MLP | {"reward": float("nan")}, "reward: given NaN; allowed: a finite number"),
        ({"observations": []}, "observations: given 0 items; allowed: a list of 1 to 3 items"),
        ({"observations": [[0.0] * 5] * 4}, "observations: given 4 items; allowed: a list of 1"),
        ({"observations": [[0.0] * 5, [0.0]]}, "observations[1]: given 1 items; allowed: a list"),
        (
            {"observations": [[0.0] * 5, [0.0, float("nan")] * 2 + [0.0]]},
            "observations[1][1]: given NaN; allowed: a finite number",
        ),
        (
            {"observations": [[0.0] * 5], "states": []},
            "states: given 0 items; allowed: a list of 1",
        ),
        ({"observations": [[0.0] * 5], "states": ["A"]}, "states[0]: given"),
        ({"observations": [[0.0] * 5], "state": None}, "state: given a key that is not known"),
        ({"observations": [[0.0] * 5], "masks": [[1]]}, "masks[0]: given 1 items; allowed"),
    ],
)
def test_requests_that_will_not_do_are_named(given: Any, message: str) -> None:
    messages = Messages(facts_of("lstm"), 3)
    with pytest.raises(FieldError) as caught:
        messages.read(json.dumps(given).encode())
    assert str(caught.value).startswith(message), caught.value


def test_a_policy_without_memory_or_choices_takes_neither_state_nor_mask() -> None:
    messages = Messages(load_kind("squashed").facts, 3)
    assert messages.read(json.dumps(MLP | {"state": None, "mask": None}).encode()).masks is None
    for name in ("state", "mask"):
        with pytest.raises(FieldError, match=f"^{name}: .* allowed: null"):
            messages.read(json.dumps(MLP | {name: "AAAA"}).encode())


def test_masks_head_by_head() -> None:
    messages = Messages(load_kind("tree").facts, 3)
    seen = json.dumps(example(messages.facts.observation))
    with pytest.raises(FieldError, match="mask: given nothing allowed of the choices 3 to 4"):
        messages.read(f'{{"observation": {seen}, "mask": [1, 0, 0, 0, 0]}}'.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"observation": ' + b"[" * 5000,
        b"1" * 5000,
        b"{'a'}",
    ],
)
def test_bodies_that_are_no_json_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError, match="^body: given "):
        Messages(facts_of("mlp"), 3).read(body)


@functools.cache
def facts_of(name: str) -> PolicyFacts:
    return load_kind(name).facts


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TREES = st.recursive(
    PLAIN,
    lambda part: (
        st.lists(part, max_size=5) | st.dictionaries(st.text(max_size=3), part, max_size=3)
    ),
    max_leaves=20,
)
PARTS = ("observation", "observations", "state", "states", "mask", "masks", "agent", "reward")


@pytest.mark.parametrize("name", ["tree", "lstm", "sequences"])
@given(data=st.data())
@settings(max_examples=60)
def test_no_request_is_read_but_in_the_words_of_an_error(name: str, data: st.DataObject) -> None:
    facts = facts_of(name)
    sent = data.draw(st.dictionaries(st.sampled_from((*PARTS, "seed", "greedy")), TREES) | TREES)
    if isinstance(sent, dict) and data.draw(st.booleans()):
        sent |= {"observation": example(facts.observation)}
    try:
        Messages(facts, 3).read(json.dumps(sent).encode())
    except (FieldError, BodyError) as error:
        assert "given" in str(error)  # noqa: PT017


def test_a_key_twice_is_refused() -> None:
    with pytest.raises(FieldError, match="^seed: given twice"):
        Messages(facts_of("mlp"), 3).read(b'{"seed": 1, "seed": 2}')


def test_actions_are_told_as_they_are() -> None:
    layout = Layout.of(MIXED)
    MIXED.seed(0)
    action, row = MIXED.sample(), layout.zeros()
    layout.pack(action, row)
    told = to_plain(layout.unpack(row))
    assert told == {"by": action["by"].tolist(), "go": action["go"].tolist()}
