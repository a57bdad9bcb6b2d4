"""Dreams: their errors against numbers made by hand."""

from __future__ import annotations

import numpy as np

from fugu.algos.dreamer.networks import Part
from fugu.training.dreaming import Dream


def test_errors_are_those_of_what_was_dreamed_beside_the_last_sight_repeated() -> None:
    parts = [Part("first", "numbers", (1,)), Part("second", "numbers", (2,))]
    first = np.array([9.0, 1.0, 2.0, 4.0]).reshape(4, 1, 1)  # two steps are looked at, two dreamed
    second = np.zeros((4, 1, 2))
    guesses = [np.array([0.0, 0.0, 2.0, 1.0]).reshape(4, 1, 1), np.full((4, 1, 2), 2.0)]
    model, copied = Dream(parts, [first, second], guesses, 2).errors()
    assert model == ((0.0 + 9.0) / 2 + 4.0) / 2
    assert copied == ((1.0 + 9.0) / 2 + 0.0) / 2
