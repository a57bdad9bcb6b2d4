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
from fugu.serve.batching import Passes
from fugu.serve.json_types import RequestError
from fugu.serve.layout_types import row_of, value_of
from fugu.serve.messages import Answer, Messages
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


def says(error: Exception, message: str) -> bool:
    """Whether an error begins as the message does before its dots, and has what is behind them."""
    begin, _, rest = message.partition(" ... ")
    return str(error).startswith(begin) and rest in str(error)


@each_space
def test_values_come_through_json_as_they_are_packed(name: str) -> None:
    layout = LAYOUTS[name]
    layout.space.seed(1)
    schema = value_of(layout).schema
    Draft202012Validator.check_schema(schema)
    valid = Draft202012Validator(schema)
    for _ in range(30):
        value, row = sample(layout)
        sent = json.loads(json.dumps(as_client(layout.space, value)))
        valid.validate(sent)
        np.testing.assert_array_equal(row_of(layout).read(sent, "observation"), row)


@each_space
def test_the_example_is_a_value(name: str) -> None:
    layout = LAYOUTS[name]
    shown = json.loads(json.dumps(value_of(layout).example))
    Draft202012Validator(value_of(layout).schema).validate(shown)
    row_of(layout).read(shown, "observation")


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


def refusal(layout: Layout, sent: Any) -> RequestError | None:
    try:
        row_of(layout).read(sent, "observation")
    except RequestError as error:
        return error
    return None


@each_space
def test_the_schema_takes_what_the_server_takes(name: str) -> None:
    layout, chance = LAYOUTS[name], random.Random(2)
    layout.space.seed(3)
    valid, refused = Draft202012Validator(value_of(layout).schema), 0
    for _ in range(150):
        value, _ = sample(layout)
        sent = mutate(as_client(layout.space, value), chance)
        error = refusal(layout, sent)
        if error is None:
            assert valid.is_valid(sent), sent
            continue
        refused += 1
        assert error.field.startswith("observation"), error
        # A schema has no words for links between nodes, nor for the largest number of a type.
        beyond = ("as many links", "indices of", "got 1000000.", f"got -{2**70}")
        if not any(words in str(error) for words in beyond):
            assert not valid.is_valid(sent), (sent, error)
    assert refused > 20


@pytest.mark.parametrize("name", ["tree", "own-critic", "lstm", "nature", "squashed", "no-critic"])
def test_requests_and_answers_fit_the_schema(name: str) -> None:
    policy = load_kind(name)
    facts, messages = policy.facts, Messages(policy.facts, 4)
    schema = json.loads(json.dumps(messages.schema))
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
        with pytest.raises(RequestError):
            messages.read(json.dumps(wrong).encode())


def test_arrays_may_be_base64_of_their_bytes() -> None:
    layout = BY_NAME["nature"].make()[1]
    layout.space.seed(0)
    image = layout.space.sample()
    packed = base64.b64encode(image.tobytes()).decode()
    rows = [row_of(layout).read(sent, "observation") for sent in (image.tolist(), packed)]
    np.testing.assert_array_equal(*rows)
    assert Draft202012Validator(value_of(layout).schema).is_valid(packed)
    floats = Layout.of(spaces.Box(-1, 1, (2,)))
    for wrong, word in [
        (
            np.float32([0, np.nan]).tobytes(),
            r"observation\[1\]: expected a finite number of type float32; got NaN",
        ),
        (
            np.float32([0]).tobytes(),
            "expected base64 of the 8 bytes of 2 float32, little-endian; got base64 of 4 bytes",
        ),
    ]:
        with pytest.raises(RequestError, match=word):
            row_of(floats).read(base64.b64encode(wrong).decode(), "observation")


@pytest.mark.parametrize(
    ("name", "sent", "message"),
    [
        (
            "items",
            [[0, 0, 0]] * 5,
            "observation: expected a list of 6 x 3 numbers ... got a list of 5 items",
        ),
        (
            "items",
            [[0, 0, 0]] * 5 + [[0, 0]],
            "observation[5]: expected a list of 3 ... got a list of 2 items",
        ),
        ("items", [[0, 0, 0]] * 5 + [3], "observation[5]: expected a list of 3 numbers ... got 3"),
        (
            "items",
            [[0, 0, True]] * 6,
            "observation[0][2]: expected a finite number of type float32 ... got true",
        ),
        (
            "items",
            [[0, 0, "1"]] * 6,
            'observation[0][2]: expected a finite number of type float32 ... got "1"',
        ),
        (
            "items",
            [[0, 0, None]] * 6,
            "observation[0][2]: expected a finite number of type float32 ... got null",
        ),
        (
            "items",
            [[0, [0], 0]] * 6,
            "observation[0][1]: expected a finite number of type float32 ... got a list of 1 items",
        ),
        (
            "items",
            "zzz",
            'observation: expected base64 of the 72 bytes of 18 float32 ... got "zzz" (',
        ),
        (
            "scalar",
            float("inf"),
            "observation: expected a finite number of type float32 ... got Infinity",
        ),
        ("scalar", 1e300, "observation: expected a finite number of type float32 ... got 1e+300"),
        ("scalar", 10**400, "observation: expected a finite number of type float32 ... got 1000"),
        (
            "half",
            [0, 1e5],
            "observation[1]: expected a finite number of type float16 ... got 100000.0",
        ),
        ("wide", [0, -1], "observation[1]: expected an integer from 0 to 1844 ... got -1"),
        ("wide", [0, 0.5], "observation[1]: expected an integer ... got 0.5"),
        ("discrete", 8, "observation: expected an integer from 5 to 7 ... got 8"),
        (
            "discrete",
            10**30,
            "observation: expected an int ... got 1000000000000000000000000000000",
        ),
        (
            "varied",
            [[1, 0], [4, 7]],
            "observation[1][0]: expected an integer from 0 to 3 ... got 4",
        ),
        ("text", "a", 'observation: expected a string of 2 to 5 ... got "a"'),
        ("text", "axa", 'observation: expected a string ... got "axa"'),
        ("open", {"mission": "\ud800"}, 'observation.mission: expected a string ... got "\\ud800"'),
        ("open", {"mission": "x" * 99}, 'observation.mission: expected a string ... got "xxxx'),
        (
            "stacked",
            [[0, 0], [0, "a"]],
            'observation[1][1]: expected a finite number of type float32 ... got "a"',
        ),
        (
            "stacked",
            [[0, 0]] * 6,
            "observation: expected a list of 0 to 5 items ... got a list of 6 items",
        ),
        (
            "graph",
            {"nodes": [[0, 0]], "edges": [1]},
            "observation.edge_links: expected a value, which is required ... got nothing",
        ),
        (
            "graph",
            {"nodes": [[0, 0]], "edges": [1], "edge_links": [[0, 1]]},
            "observation.links: expected indices of its 1 nodes ... got links from 0 to 1",
        ),
        ("keys", {"a b": 2, "c": [0]}, 'observation["a b"]: expected an integer from 0 ... got 2'),
        (
            "keys",
            {"a b": 0, "c": [0], "b": 1},
            "observation.b: expected the keys a b, c ... got an unknown one",
        ),
        ("keys", {"a b": 0}, "observation.c: expected a value, which is required ... got nothing"),
        (
            "keys",
            {"a b": 0, "c": [0, 1]},
            "observation.c: expected a list of 1 ... got a list of 2 items",
        ),
        ("keys", 7, "observation: expected an object with the keys a b, c ... got 7"),
    ],
)
def test_what_does_not_fit_is_named(name: str, sent: Any, message: str) -> None:
    layout = LAYOUTS[name]
    with pytest.raises(RequestError) as caught:
        row_of(layout).read(sent, "observation")
    assert says(caught.value, message), caught.value


MLP = {"observation": [0.0] * 5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "observation: expected a value, which is required ... got nothing"),
        ([], "body: expected an object with the keys observation ... got a list of 0 items"),
        (
            MLP | {"stat": None},
            "stat: expected the keys observation, state ... Did you mean state?",
        ),
        (
            MLP | {"state": 3},
            "state: expected a list of 32 numbers, or base64 of their bytes ... got 3",
        ),
        (MLP | {"state": "AAAA"}, "state: expected base64 of the 128 ... got base64 of 3 bytes"),
        (MLP | {"state": "ÄÖ"}, "state: expected base64 of the 128 bytes ... got"),
        (
            MLP | {"state": [0.0] * 3},
            "state: expected a list of 32 numbers ... got a list of 3 items",
        ),
        (MLP | {"mask": [1, 1, 1]}, "mask: expected a list of 4 numbers ... got a list of 3 items"),
        (MLP | {"mask": [1, 1, 1, 2]}, "mask[3]: expected true or false ... got 2"),
        (
            MLP | {"mask": [0] * 4},
            "mask: expected at least one of the choices 0 to 3 ... got none of them",
        ),
        (MLP | {"greedy": 2}, "greedy: expected true or false ... got 2"),
        (MLP | {"seed": -1}, "seed: expected an integer from 0 ... got -1"),
        (MLP | {"seed": 2**63}, "seed: expected an integer from 0 ... got 9223372036854775808"),
        (MLP | {"seed": "a"}, 'seed: expected an integer ... got "a"'),
        (MLP | {"agent": 0.5}, "agent: expected an integer ... got 0.5"),
        (
            MLP | {"reward": float("nan")},
            "reward: expected a finite number of type float32 ... got NaN",
        ),
        (
            {"observations": []},
            "observations: expected a list of 1 to 3 items ... got a list of 0 items",
        ),
        (
            {"observations": [[0.0] * 5] * 4},
            "observations: expected a list of 1 ... got a list of 4 items",
        ),
        (
            {"observations": [[0.0] * 5, [0.0]]},
            "observations[1]: expected a list ... got a list of 1 items",
        ),
        (
            {"observations": [[0.0] * 5, [0.0, float("nan")] * 2 + [0.0]]},
            "observations[1][1]: expected a finite number of type float32 ... got NaN",
        ),
        (
            {"observations": [[0.0] * 5], "states": []},
            "states: expected a list of 1 ... got a list of 0 items",
        ),
        (
            {"observations": [[0.0] * 5], "states": ["A"]},
            "states[0]: expected base64 of the 128 bytes ... got",
        ),
        (
            {"observations": [[0.0] * 5], "state": None},
            "state: expected the keys observations, states ... Did you mean states?",
        ),
        (
            {"observations": [[0.0] * 5], "masks": [[1]]},
            "masks[0]: expected a list of 4 numbers ... got a list of 1 items",
        ),
    ],
)
def test_requests_that_will_not_do_are_named(given: Any, message: str) -> None:
    messages = Messages(facts_of("lstm"), 3)
    with pytest.raises(RequestError) as caught:
        messages.read(json.dumps(given).encode())
    assert says(caught.value, message), caught.value


def test_a_policy_without_memory_or_choices_takes_neither_state_nor_mask() -> None:
    messages = Messages(load_kind("squashed").facts, 3)
    assert messages.read(json.dumps(MLP | {"state": None, "mask": None}).encode()).masks.size == 0
    for name in ("state", "mask"):
        with pytest.raises(
            RequestError, match=f"^{name}: expected null, since this policy has no "
        ):
            messages.read(json.dumps(MLP | {name: "AAAA"}).encode())


def test_masks_head_by_head() -> None:
    messages = Messages(load_kind("tree").facts, 3)
    seen = json.dumps(value_of(messages.facts.observation).example)
    with pytest.raises(RequestError, match="mask: expected at least one of the choices 3 to 4"):
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
    with pytest.raises(RequestError, match="^body: expected "):
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
        sent |= {"observation": value_of(facts.observation).example}
    try:
        Messages(facts, 3).read(json.dumps(sent).encode())
    except RequestError as error:
        assert "expected" in str(error)  # noqa: PT017


def test_a_key_twice_is_refused() -> None:
    with pytest.raises(
        RequestError, match="^seed: expected each key once in an object; got it twice"
    ):
        Messages(facts_of("mlp"), 3).read(b'{"seed": 1, "seed": 2}')


def test_actions_are_written_as_they_are() -> None:
    policy = load_kind("tree")
    layout, messages = policy.facts.action, Messages(policy.facts, 3)
    layout.space.seed(0)
    action, rows = layout.space.sample(), layout.zeros(1)
    layout.pack(action, rows[0])
    ask = messages.read(json.dumps(messages.example).encode())
    nothing = np.zeros((1, 0), np.float32)
    written = json.loads(messages.write(ask, Answer(rows, nothing, nothing)))
    assert written["action"] == {"by": action["by"].tolist(), "go": action["go"].tolist()}
    assert (written["value"], written["state"]) == (None, None)
