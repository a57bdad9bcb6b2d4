"""Writes docs/performance.md, and the table of the README, from the files of benchmarks/results.

    python docs/generate_performance.py [--check]

With --check nothing is written, and the exit status is 1 if a page is not what it should be.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import between, table, write_or_check

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
# Parts of benchmarks that are no benchmarks themselves.
PARTS = (
    "claims",
    "racing",
    "scale_plan",
    "vector_runner",
    "workloads",
    "zoo_results",
    "zoo_tasks",
)
CLAIM = re.compile(r"^claim (\S+): (\S+) \(target (.+?)\) (.+)$", re.M)
TRAINING, SOLVING = "breakout, 2,048 copies", "CartPole: seconds to 475"
SAME, DEFAULTS = "CartPole, same settings", "CartPole, defaults settings"
# Boxes and claims of algos.md that the README shows.
ALGORITHMS = (
    (
        "decision transformer",
        "decision_transformer-against-d3rlpy",
        "d3rlpy",
        "learning with a Decision Transformer",
    ),
    ("dreamer", "dreamer-against-sheeprl", "SheepRL", "learning with Dreamer"),
    ("grpo", "grpo-against-trl", "TRL", "the loss of GRPO"),
)


@dataclass(frozen=True)
class Box:
    """A table as a terminal shows it."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def row(self, name: str) -> dict[str, str]:
        """The cells of the row of that name, by column."""
        (found,) = [row for row in self.rows if row[0] == name]
        return dict(zip(self.head, found, strict=True))


def boxes(text: str) -> Iterator[Box]:
    """The tables of a terminal's output; lines that a cell was wrapped to are joined again."""
    title, head, rows = "", [], []
    for line in text.splitlines():
        mark, cells = line[:1], [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
        if mark == "┃":
            head = [
                f"{a} {b}".strip() for a, b in zip(head or [""] * len(cells), cells, strict=True)
            ]
        elif mark == "│" and rows and not cells[1]:
            rows[-1] = [f"{a} {b}".strip() for a, b in zip(rows[-1], cells, strict=True)]
        elif mark == "│":
            rows.append(cells)
        elif mark == "└":
            yield Box(title, tuple(head), [tuple(row) for row in rows])
            title, head, rows = "", [], []
        elif mark not in "┏┡" and line.strip():
            title = line.strip()


def claims(text: str) -> dict[str, tuple[str, str, str]]:
    """Ratio, target and verdict of each claim."""
    return {match[1]: (match[2], match[3], match[4]) for match in CLAIM.finditer(text)}


# ---------------------------------------------------------------------- sections


def kept(name: str) -> list[str]:
    """A page of results, one heading deeper, what a terminal showed made readable."""
    text = re.sub(r"^#", "##", (RESULTS / f"{name}.md").read_text(), flags=re.M)
    parts = re.split(r"^```\n", text, flags=re.M)
    parts[1::2] = ["\n".join(readable(output)) for output in parts[1::2]]
    # A table without a row says nothing.
    full = re.sub(r"^\|.*\n\|[-|]+\n(?!\|)", "", "".join(parts), flags=re.M)
    return [*full.splitlines(), ""]


def readable(output: str) -> list[str]:
    """A terminal's output: its tables, what it said beside them, and its claims."""
    lines: list[str] = []
    titles = set()
    for box in boxes(output):
        titles.add(box.title)
        lines += [f"**{box.title}**", ""] if box.title else []
        lines += table(box.head, box.rows)
    plain = [line.rstrip() for line in output.splitlines() if line[:1] not in "┏┃┡│└"]
    said = [line for line in plain if line.strip() not in titles and not CLAIM.match(line)]
    if any(said):
        lines += ["```text", *filter(None, said), "```", ""]
    if told := claims(output):
        rows = [(f"`{name}`", *words) for name, words in told.items()]
        lines += table(("claim", "found", "asked", ""), rows)
    return lines


def proofs() -> list[str]:
    """That algorithms learn, and what they do without the part in question."""
    lines = [*PROOFS.strip().splitlines(), ""]
    rows = []
    for name, proof in read("learning").items():
        asked = f"at least {proof['threshold']:g}"
        if proof["bound"] is not None:
            asked += f", control at most {proof['bound']:g}"
        if proof["share"] is not None:
            asked += f", in at most {proof['share']:g} of the control's steps"
        scores = [numbers(o["score"] for o in proof[k] or []) for k in ("outcomes", "controls")]
        told = f"**{name}**: {proof['shows']}", f"`{proof['env']}`"
        rows.append((*told, asked, *scores, verdict(proof)))
    lines += table(("proof", "environment", "asked", "scores", "control's scores", "holds"), rows)
    lines += ["GRPO, with its controls (`python benchmarks/learning_grpo.py`):", ""]
    rows = []
    for name, proof in read("learning_grpo").items():
        least, most = proof["least"], proof["most"]
        asked = f"at least {least:g}" if least is not None else f"at most {most:g}"
        rows.append((name, asked, numbers(proof["scores"]), verdict(proof)))
    return lines + table(("proof", "asked", "scores", "holds"), rows)


def scripts() -> list[str]:
    """Every benchmark, and what it sets out to show."""
    rows = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        if path.stem in PARTS:
            continue
        words = ast.get_docstring(ast.parse(path.read_text())) or ""
        rows.append((f"`benchmarks/{path.name}`", words.splitlines()[0].replace("|", "\\|")))
    return [*REPEAT.strip().splitlines(), "", *table(("script", "what it measures"), rows)]


def readme_table() -> str:
    """The ratios of the README."""
    rows = []
    (race,) = [
        box for box in boxes((RESULTS / "engines.md").read_text()) if box.title.startswith(TRAINING)
    ]
    for core in ("mlp", "lstm"):
        theirs = race.row(f"{core}: pufferlib")["steps/s"]
        for engine in ("native, bfloat16", "torch, float32"):
            ours = race.row(f"fugu {core}, {engine}")
            what = f"training on breakout, {core.upper()} of {ours['parameters']} weights, {engine}"
            ratio = ours["against pufferlib"]
            cells = (ours["steps/s"], f"{theirs} PufferLib", f"**{ratio}**")
            rows.append((f"{what}, steps/s", *cells))
    text = (RESULTS / "train.md").read_text()
    by_title = {box.title: box for box in boxes(text)}
    told = claims(text)

    def box(start: str) -> Box:
        (found,) = [box for title, box in by_title.items() if title.startswith(start)]
        return found

    for kind, row in (("native", "native"), ("gymnasium", "Gymnasium's")):
        ours, theirs = box(SOLVING).row(f"fugu, {row}, tuned"), box(SOLVING).row("sb3, tuned")
        what = f"CartPole ({row}) to a return of 475, tuned, seconds"
        ratio = told[f"solve-{kind}-times-faster"][0]
        peer = f"{theirs['median']} Stable-Baselines3"
        rows.append((what, ours["median"], peer, f"**{ratio}**"))
    for title, words, copies in ((SAME, "same settings", "64"), (DEFAULTS, "own defaults", "8")):
        column = f"{copies} copies"
        ratios = box(title).row("fugu / best peer")[column].split(" and ")
        for i, row in enumerate(("native", "Gymnasium's")):
            ours = box(title).row(f"fugu, {row}")[column]
            theirs = box(title).row("pufferlib")[column]
            what = f"training on CartPole ({row}), {column}, {words}, steps/s"
            rows.append((what, ours, f"{theirs} PufferLib", f"**{ratios[i]}**"))
    text = (RESULTS / "algos.md").read_text()
    told, by_title = claims(text), {box.title: box for box in boxes(text)}
    for title, claim, peer, words in ALGORITHMS:
        head, ours, theirs = by_title[title].head[1], *(row[1] for row in by_title[title].rows)
        rows.append((f"{words}, {head}", ours, f"{theirs} {peer}", f"**{told[claim][0]}**"))
    return "\n".join(table(("", "fugu", "best peer", "ratio"), rows))


# ---------------------------------------------------------------------- words


INTRO = """
# Performance

Figures, how they were measured, and how to measure them again. This page is written from the files
of `benchmarks/results` by `docs/generate_performance.py`, so it cannot say anything else than they
do. What has no file there is not claimed.

Peers are other people's libraries, at a pinned version, in virtual environments of their own, as
published; they run in the same script, in turns with fugu, on the same machine. Targets were
written down before; where one is missed the table says so. Read ratios rather than rates: rates are
those of two cores of one kind of processor.
"""
PROOFS = """
## That it learns

Each proof has a threshold and seeds that were committed before it ran, and a control: the same
training with the part in question switched off, which must fail or take much longer. Scores are
listed seed by seed. `python benchmarks/learning.py` says how to read each and runs them;
`tests/learning` keeps short forms of them in the suite.
"""
ELSEWHERE = """
## Elsewhere

- Forward passes by the native core beside torch, by batch and kind of processor: [networks without
  torch](nets.md#how-fast).
- Environments on a Ray cluster: [scale](scale.md).
- What each algorithm reached: [its own page](algorithms/index.md).
"""
REPEAT = """
## Measure it yourself

```sh title="not run: hours"
make bench                               # everything, peers included: some hours
python benchmarks/train.py --quick       # one claim, in less than a minute
python benchmarks/train.py --json rows.jsonl
```

`make peers` installs the peers; one that cannot be installed is named as absent, and nothing is
filled in for it. Let nothing else run meanwhile. `--quick` measures a subset and names the rest as
not measured. The last lines are `claim NAME: RATIO (target T) met|missed|not measured`; the exit
status is 1 when one is missed, and `--json` appends a row for each, with the commit it was measured
on.
"""


def read(name: str) -> dict[str, Any]:
    """A file of results."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def numbers(scores: Any) -> str:
    """Scores side by side."""
    return ", ".join(f"{score:.4g}" for score in scores) or "-"


def verdict(proof: dict[str, Any]) -> str:
    """Whether it holds, and where that was seen."""
    return f"{'yes' if proof['holds'] else '**no**'} ({proof['commit']})"


def main() -> int:
    """Write the page and the table, or check them."""
    own = {"train", "learning", "engines"}
    others = [path.stem for path in sorted(RESULTS.glob("*.md")) if path.stem not in own]
    lines = [*INTRO.strip().splitlines(), "", *kept("engines"), *kept("train"), *proofs()]
    for name in others:
        lines += kept(name)
    lines += [*ELSEWHERE.strip().splitlines(), "", *scripts()]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"
    return write_or_check({PAGE: text, README: between(README, "ratios", readme_table())})


if __name__ == "__main__":
    sys.exit(main())
