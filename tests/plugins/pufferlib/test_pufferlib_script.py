"""The same script on PufferLib 3.0 and here, with only its import line changed.

Where PufferLib is installed (`make peers`) it runs there too; elsewhere what it printed is read
from `pufferlib_facts.json`.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
SCRIPT, FACTS = HERE / "puffer_script.py", HERE / "pufferlib_facts.json"
THEIRS = HERE.parents[2] / ".venv-pufferlib" / "bin" / "python"
OUR_IMPORT = "import fugu_pufferlib as pufferlib\n"
THEIR_IMPORT = (
    "import pufferlib, pufferlib.emulation, pufferlib.models, pufferlib.pytorch, pufferlib.vector\n"
)
Facts = dict[str, Any]
KINDS = ("squares", "machine", "herd")
LOOPS = ("serial", "processes", "in turns")


def run(python: Path | str, script: Path, folder: Path) -> Facts:
    done = subprocess.run(
        [str(python), str(script)], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    facts: Facts = json.loads(done.stdout)
    return facts


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return run(sys.executable, SCRIPT, tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs() -> Facts:
    facts: Facts = json.loads(FACTS.read_text())
    return facts


@pytest.mark.skipif(not THEIRS.exists(), reason="PufferLib is not installed; make peers does it")
def test_the_recorded_facts_are_what_pufferlib_prints(tmp_path: Path, theirs: Facts) -> None:
    text = SCRIPT.read_text()
    assert text.count(OUR_IMPORT) == 1
    script = tmp_path / "script.py"
    script.write_text(text.replace(OUR_IMPORT, THEIR_IMPORT))
    found, known = run(THEIRS, script, tmp_path), copy.deepcopy(theirs)
    for kind in KINDS:  # numbers of networks may differ in their last bits
        pairs = [facts[f"{kind} policies"].pop("numbers") for facts in (found, known)]
        for one, other in zip(*pairs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    assert found == known


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_describe_themselves_alike(kind: str, ours: Facts, theirs: Facts) -> None:
    assert ours[f"{kind} is"] == theirs[f"{kind} is"]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_have_the_same_shapes_and_dtypes(
    kind: str, loop: str, ours: Facts, theirs: Facts
) -> None:
    assert ours[f"{kind} {loop}"]["forms"] == theirs[f"{kind} {loop}"]["forms"]


@pytest.mark.parametrize("loop", LOOPS)
def test_environments_that_restart_themselves_give_the_same_numbers(
    loop: str, ours: Facts, theirs: Facts
) -> None:
    assert ours[f"squares {loop}"]["steps"] == theirs[f"squares {loop}"]["steps"]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("kind", "agents"), [("machine", 1), ("herd", 3)])
def test_emulated_ones_do_too_once_the_steps_that_only_reset_are_taken_out(
    kind: str, agents: int, loop: str, ours: Facts, theirs: Facts
) -> None:
    found = by_environment(ours[f"{kind} {loop}"]["steps"], agents)
    known = by_environment(theirs[f"{kind} {loop}"]["steps"], agents)
    assert found.keys() == known.keys()
    for env in found:
        merged = without_resets(known[env])
        assert len(merged) < len(known[env]), "the control: they have such steps"
        assert found[env][: len(merged)] == merged


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_infos_are_the_same_in_form_and_content(
    kind: str, loop: str, ours: Facts, theirs: Facts
) -> None:
    """Up to the step in which they come: a reset's come with the end before it."""
    found, known = (
        Counter(str(info) for step in facts[f"{kind} {loop}"]["steps"] for info in step[6])
        for facts in (ours, theirs)
    )
    assert known.total()
    assert known <= found, "as many steps tell more, where none only resets"


@pytest.mark.parametrize("kind", KINDS)
def test_policies_have_the_same_parameters_and_say_the_same(
    kind: str, ours: Facts, theirs: Facts
) -> None:
    found, known = ours[f"{kind} policies"], theirs[f"{kind} policies"]
    assert found["parameters"] == known["parameters"]
    assert found["forms"] == known["forms"]
    for one, other in zip(found["numbers"], known["numbers"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("what", ["itself", "synchronous", "alone"])
def test_the_rest_is_equal(what: str, ours: Facts, theirs: Facts) -> None:
    assert ours[what] == theirs[what]


# ---------------------------------------------------------------------- streams


def by_environment(steps: list[Any], agents: int) -> dict[int, list[Any]]:
    """The rows of each environment in order: marks, rewards, terminals, truncations, masks."""
    found: dict[int, list[Any]] = {}
    for marks, rewards, ids, terminals, truncations, masks, _ in steps:
        rows = list(zip(marks, rewards, terminals, truncations, masks, strict=True))
        for first in range(0, len(ids), agents):
            found.setdefault(ids[first] // agents, []).append(rows[first : first + agents])
    return found


def without_resets(steps: list[Any]) -> list[Any]:
    """Steps as they are if an episode's end and the reset after it are one.

    What is seen is of the reset, what was earned of the end; an agent that was gone before has
    nothing of the end. The last step is left out, since its reset may not have been seen.
    """
    found, i = [], 0
    while i < len(steps) - 1:
        now, after = steps[i], steps[i + 1]
        over = all(terminal or cut for _, _, terminal, cut, _ in now)
        if not over:
            found.append(now)
        else:
            found.append([
                (new[0], old[1], old[2] if old[4] else new[2], old[3], new[4])
                for old, new in zip(now, after, strict=True)
            ])  # fmt: skip
        i += 2 if over else 1
    return found
