"""The most probable action as outputs of a graph, for those who run it without fugu."""

from __future__ import annotations

import numpy as np

from fugu.export.engine import PolicyFacts
from fugu.export.leaves import named_leaves
from fugu.export.onnx_graph import Graph
from fugu.spaces.action_sampler import ActionSampler, Choices, Numbers


def add_actions(graph: Graph, params: str, facts: PolicyFacts) -> None:
    """Add an output for each leaf of an action, as `ActionSampler` draws it greedily."""
    sampler = ActionSampler(facts.action, facts.continuous)
    names = {leaf.path: name for name, leaf in named_leaves(facts.action, "action").items()}
    logits = _allowed(graph, params, sampler) if sampler.num_choices else ""
    begin = 0
    for choices in sampler.writer.choices:
        found = _choose(graph, logits, choices, begin)
        begin += sum(choices.counts)
        says = f"The most probable of {choices.leaf.space}"
        _output(graph, names[choices.leaf.path], found, choices, says)
    for numbers in sampler.writer.numbers:
        first = numbers.columns.start - sampler.num_heads + sampler.num_choices
        last = numbers.columns.stop - sampler.num_heads + sampler.num_choices
        found = _bound(graph, graph.cut(params, first, last), numbers)
        says = f"The mean, within {numbers.leaf.space}"
        _output(graph, names[numbers.leaf.path], found, numbers, says)


def _output(graph: Graph, name: str, value: str, part: Choices | Numbers, says: str) -> None:
    leaf = part.leaf
    shaped = graph.reshape(graph.cast(value, leaf.dtype), -1, *leaf.shape)
    graph.output(name, shaped, leaf.dtype, leaf.shape, says[:500])


def _allowed(graph: Graph, params: str, sampler: ActionSampler) -> str:
    """Logits, with those of choices that the mask forbids below all others."""
    says = "Which choices are allowed, those of all heads side by side."
    mask = graph.input("mask", np.bool_, (sampler.num_choices,), says)
    logits = graph.cut(params, 0, sampler.num_choices)
    return graph.add("Where", mask, logits, graph.number(-np.inf))


def _choose(graph: Graph, logits: str, choices: Choices, begin: int) -> str:
    """The best choice of each head, `[batch, heads]`."""
    counts = choices.counts
    if len(set(counts)) == 1:
        apart = graph.cut(logits, begin, begin + sum(counts))
        apart = graph.reshape(apart, 0, len(counts), counts[0])
        best = graph.add("ArgMax", apart, axis=-1, keepdims=0)
    else:
        found = []
        for count in counts:
            part = graph.cut(logits, begin, begin + count)
            found.append(graph.add("ArgMax", part, axis=-1, keepdims=1))
            begin += count
        best = graph.add("Concat", *found, axis=-1)
    return graph.add("Add", best, graph.weight(choices.start.astype(np.int64)))


def _bound(graph: Graph, means: str, numbers: Numbers) -> str:
    """Means scaled or squashed, and clipped, in double precision as `RowWriter` does it."""
    found = graph.cast(means, np.float64)
    if numbers.squashed.any():
        found = graph.add("Where", graph.weight(numbers.squashed), graph.add("Tanh", found), found)
    if not numbers.plain:
        found = graph.add("Mul", found, graph.weight(numbers.scale))
        found = graph.add("Add", found, graph.weight(numbers.shift))
    found = graph.add("Max", found, graph.weight(numbers.low))
    return graph.add("Min", found, graph.weight(numbers.high))
