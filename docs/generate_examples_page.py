"""Write docs/examples.md: what the example scripts change, and how fast they are.

    python docs/generate_examples_page.py [--check]

With --check, write nothing and exit with status 1 if the page is out of date.
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

## PPO to copy and change

`examples/ppo.py` is PPO in one file, read from top to bottom: fugu steps the environments,
stores the segments and computes the advantages, and the network, the loss and the optimizer are
plain torch. The settings have the names of CleanRL and PufferLib. `--env` takes any name that
`fugu.make` takes, with one group of agents and discrete or continuous actions. Truncated episodes
are bootstrapped, action masks are respected, and equal seeds give identical runs.

```text
python examples/ppo.py
python examples/ppo.py --env breakout --num-envs 256 --total-timesteps 5_500_000
python examples/ppo.py --help
```

## CleanRL with a few lines changed

`examples/cleanrl/ppo.py` is PPO in one file, in the style of CleanRL: {lines} lines that handle
observations in one array and discrete actions, and do not use fugu. The scripts below are the same
file with a few lines changed, which let it train on more environments, or faster. They are real
files, written by `examples/cleanrl/variants.py`; a test compares them.

Steps/s are measured while training on two cores, by `python benchmarks/examples.py`; a dash means
that the script was not measured. A step is one action: in Pong, four frames. `make recipes`
installs the packages.
"""
SB3 = """
## Stable-Baselines3 on a structured environment

Expedition has observations of nested dicts, a text and a sequence of variable length, and actions
that mix choices with a number. `to_sb3` converts them to spaces that Stable-Baselines3 accepts
([more](migrate/stable_baselines3.md)).
"""
MORE = """
## More

- `examples/cleanrl_style_ppo.py`: the same kind of script on nested observations and mixed actions
  ([from CleanRL](migrate/cleanrl.md)).
- `examples/ppo_by_hand.py`: PPO in sixty lines, with fugu's policy and learner.
- `examples/emulation_tour.py`: a structured environment as flat rows and back.
- `examples/coding_problem.py`: a coding problem of your own ([programs](coding.md)).
"""


def section(variant: Variant, known: dict[str, Any]) -> list[str]:
    """Return the lines of one variant's section."""
    added, removed = variant.changed()
    facts = f"{count(added)} added, {removed} removed; {result_of(variant.name, known)}."
    lines = [f"### {variant.name}", "", f"{sentence(variant.description)}.", ""]
    lines += [f"`python examples/cleanrl/{variant.path.name}`: {facts}", ""]
    lines += ["```diff", *variant.diff(), "```", ""]
    if error := known.get(variant.name, {}).get("error"):
        lines += ["It fails with", "", "```text", error, "```", ""]
    return lines


def count(lines: int) -> str:
    """Return a number of lines, in words."""
    return f"{lines} line{'' if lines == 1 else 's'}"


def sentence(words: str) -> str:
    """Capitalize the first letter."""
    return words[:1].upper() + words[1:]


def result_of(name: str, known: dict[str, Any]) -> str:
    """Return a script's steps/s, or why it has none."""
    found = known.get(name, {})
    if "error" in found:
        return "it fails"
    if "absent" in found:
        return f"not measured, `{found['absent']}` was absent"
    return f"{rate(name, known)} steps/s"


def rate(name: str, known: dict[str, Any]) -> str:
    """Return a script's steps/s, as a cell of a table."""
    found = known.get(name, {}).get("rate")
    return "-" if found is None else f"{found:,.0f}"


def summary(known: dict[str, Any]) -> list[str]:
    """Return the table of all scripts."""
    rows = [(f"`{PLAIN}`", "the plain script on CartPole", "", rate(PLAIN, known))]
    for variant in VARIANTS:
        added, removed = variant.changed()
        link = f"[`{variant.name}`](#{variant.name})"
        rows.append((link, variant.description, f"+{added} -{removed}", rate(variant.name, known)))
    words = "Stable-Baselines3 on Expedition"
    rows.append((f"`{STRUCTURED}`", words, "", rate(STRUCTURED, known)))
    return table(("script", "what it shows", "lines", "steps/s"), rows)


def main() -> int:
    """Write the page, or check that it is up to date."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    plain = len((HERE / f"{PLAIN}.py").read_text().splitlines())
    lines = [*INTRO.format(lines=plain).strip().splitlines(), "", *summary(known)]
    for variant in VARIANTS:
        lines += section(variant, known)
    lines += [*SB3.strip().splitlines(), ""]
    lines += [f"`python examples/{STRUCTURED}.py`: {result_of(STRUCTURED, known)}.", ""]
    return write_or_check({PAGE: "\n".join([*lines, *MORE.strip().splitlines(), ""])})


if __name__ == "__main__":
    sys.exit(main())
