"""Writes docs/examples.md: what the scripts of examples change, and how fast they are.

    python docs/generate_examples_page.py [--check]

With --check nothing is written, and the exit status is 1 if the page is not what it should be.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pages import table, write_or_check

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples/cleanrl"))

from variants import HERE, PLAIN, VARIANTS, Variant  # noqa: E402

PAGE = ROOT / "docs/examples.md"
RESULT = ROOT / "benchmarks/results/examples.json"
STRUCTURED = "sb3_structured"
INTRO = """
# Examples

`examples/cleanrl/ppo.py` is PPO in one file, in the style of CleanRL: {lines} lines that know
arrays and choices, and nothing of fugu. The scripts below are the same file with a few lines
changed, by which it trains on what it could not take, or faster. They are real files, written by
`examples/cleanrl/variants.py`; a test compares them.

Steps/s are those of training on two cores, as `python benchmarks/examples.py` measured them; a dash
stands where it has not. A step is one action: in Pong, four frames. `make recipes` installs the
packages.
"""
SB3 = """
## Stable-Baselines3 on a structured environment

Expedition shows nested dicts, a text and a sequence of variable length, and takes choices mixed
with a number. `to_sb3` offers them as spaces that Stable-Baselines3 takes
([more](migrate/stable_baselines3.md)).
"""
MORE = """
## More

- `examples/cleanrl_style_ppo.py`: the same kind of script on nested observations and mixed actions
  ([from CleanRL](migrate/cleanrl.md)).
- `examples/ppo_by_hand.py`: PPO in sixty lines of fugu's parts.
- `examples/emulation_tour.py`: a structured environment as flat rows and back.
- `examples/coding_problem.py`: a coding problem of your own ([programs](coding.md)).
"""


def section(variant: Variant, known: dict[str, Any]) -> list[str]:
    """One variant."""
    added, removed = variant.changed()
    facts = f"{count(added)} added, {removed} removed; {told(variant.name, known)}."
    lines = [f"## {variant.name}", "", f"{sentence(variant.says)}.", ""]
    lines += [f"`python examples/cleanrl/{variant.path.name}`: {facts}", ""]
    lines += ["```diff", *variant.diff(), "```", ""]
    if error := known.get(variant.name, {}).get("error"):
        lines += ["It ends with", "", "```text", error, "```", ""]
    return lines


def count(lines: int) -> str:
    """So many lines."""
    return f"{lines} line{'' if lines == 1 else 's'}"


def sentence(words: str) -> str:
    """Words with a large first letter."""
    return words[:1].upper() + words[1:]


def told(name: str, known: dict[str, Any]) -> str:
    """A script's steps/s, or why it has none."""
    found = known.get(name, {})
    if "error" in found:
        return "it fails"
    if "absent" in found:
        return f"not measured, `{found['absent']}` was absent"
    return f"{rate(name, known)} steps/s"


def rate(name: str, known: dict[str, Any]) -> str:
    """A script's steps/s, in a cell of a table."""
    found = known.get(name, {}).get("rate")
    return "-" if found is None else f"{found:,.0f}"


def summary(known: dict[str, Any]) -> list[str]:
    """All scripts side by side."""
    rows = [(f"`{PLAIN}`", "the plain script, on CartPole", "", rate(PLAIN, known))]
    for variant in VARIANTS:
        added, removed = variant.changed()
        link = f"[`{variant.name}`](#{variant.name})"
        rows.append((link, variant.says, f"+{added} -{removed}", rate(variant.name, known)))
    words = "Stable-Baselines3 on Expedition"
    rows.append((f"`{STRUCTURED}`", words, "", rate(STRUCTURED, known)))
    return table(("script", "what it shows", "lines", "steps/s"), rows)


def main() -> int:
    """Write the page, or check it."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    plain = len((HERE / f"{PLAIN}.py").read_text().splitlines())
    lines = [*INTRO.format(lines=plain).strip().splitlines(), "", *summary(known)]
    for variant in VARIANTS:
        lines += section(variant, known)
    lines += [*SB3.strip().splitlines(), ""]
    lines += [f"`python examples/{STRUCTURED}.py`: {told(STRUCTURED, known)}.", ""]
    return write_or_check({PAGE: "\n".join([*lines, *MORE.strip().splitlines(), ""])})


if __name__ == "__main__":
    sys.exit(main())
