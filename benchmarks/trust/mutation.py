"""Which share of small changes of the code the tests notice.

    python benchmarks/trust/mutation.py [--count 300] [--seed 0] [--again]

cosmic-ray (`pip install -c constraints.txt -e '.[mutation]'`) changes one operator, number or
keyword of `algos`, `data` and `training` at a time, and tests run until one fails: the mutant is
killed. A mutant that no test notices survives; it is a gap in the tests, or does the same as the
original. `mutating/mutants.py` says which changes are left out. A sample has at most one change of
a place in the code.

First, every test file below is run once, to learn which tests run which lines; a mutant then meets
the quickest of the tests that run its line, as many as take `--seconds` without it. A
test that fails, or takes eight times as long as it should, kills. At the end, the tests that killed
are run without any change; kills of one that fails then do not count.

The mutated code is a copy of `src/fugu` in `build/mutation`, never the repository's own files. The
outcome of each mutant is stored there too, so that a second call continues where the first one was
stopped; `--again` runs those that survived once more. Figures and survivors go to
`benchmarks/results/mutation.json` and `mutation.md`; `mutating/equivalent.json` holds the reasons
why no test should notice some of the survivors.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from mutating.mutants import Mutant, sample
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tree import git

ROOT = Path(__file__).parents[2]
SOURCE, RESULTS, HERE = (
    ROOT / "src" / "fugu",
    ROOT / "benchmarks" / "results",
    Path(__file__).parent,
)
BUILD = ROOT / "build" / "mutation"
SITE, KEPT, LINES = BUILD / "site", BUILD / "results", BUILD / "lines"
PACKAGES = ("algos", "data", "training")
FOLDERS = ("tests/algos", "tests/data", "tests/training")  # proofs of learning take too long
FILES = (  # elsewhere, and of modules that the folders above say little about
    "tests/cli/test_preemption.py", "tests/cli/test_seeds.py", "tests/league/test_engine.py",
    "tests/nets/test_learning.py", "tests/cli/test_profile.py", "tests/cli/test_dream.py",
    "tests/hostile/test_hostile_files.py::test_an_optimiser_of_other_weights_is_refused",
    "tests/hostile/test_hostile_files.py::test_metadata_of_wrong_kinds_is_refused",
    "tests/hostile/test_hostile_files.py::test_headers_that_numpy_fails_at_are_refused",
    "tests/hostile/test_hostile_files.py::test_episodes_that_stand_elsewhere_are_refused",
)  # fmt: skip
IN_PROCESSES = {  # modules that run where no lines are counted: other processes, kernels
    "training/profiling.py": ("tests/cli/test_profile.py",),
    "training/dreaming.py": ("tests/cli/test_dream.py",),
    "training/distributed.py": ("tests/training/test_ranks.py",),
    "training/seed_summary.py": ("tests/cli/test_seeds.py",),
}
AT_IMPORT = (  # notice defaults of settings
    "tests/test_docs.py::test_pages_that_are_written_are_up_to_date[generate_reference]",
)
DISABLE = """import sys

sys.meta_path[:] = [f for f in sys.meta_path if "_editable_skbc" not in type(f).__module__]
"""
SLOWER, GRACE = 8, 45.0  # a test may take so many times as long, and so many seconds more
Slow = dict[str, float]
console = Console(stderr=True)


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    count: int = 300
    """Mutants to draw; 0: one for each place in the code."""
    seed: int = 0
    """Another seed draws other mutants."""
    seconds: float = 120.0
    """Time of tests that a mutant meets, as they take without a change."""
    again: bool = False
    """Run mutants that survived before once more."""
    only: str = ""
    """Only mutants whose file has this in its path."""
    title: str = ""
    """Name of the sample in the results; empty: results are not written."""


class Server:
    """The process of `mutating/server.py`, and the copy of `fugu` that it imports."""

    def __init__(self) -> None:
        _copy_package()
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        variables = {"PYTHONPATH": str(SITE), "PYTHONDONTWRITEBYTECODE": "1", **single}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "mutating" / "server.py")],
            cwd=ROOT, env=os.environ | variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(BUILD / "log").open("w"),
        )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"log": str(BUILD / "tests.log"), **request}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the server has ended: {(BUILD / 'log').read_text()[-2000:]}")
        return json.loads(answer)

    def try_source(self, module: str, source: str, tests: dict[str, float], slow: Slow) -> Any:
        """Run tests with another source of a module."""
        limits = {name: GRACE + SLOWER * slow[name.partition("::")[0]] for name in tests}
        path = SITE / "fugu" / module
        original = path.read_text()
        try:
            path.write_text(source)
            whole = GRACE + SLOWER * sum(tests.values()) + max(limits.values())
            return self.ask(tests=limits, lines=None, limit=whole)
        finally:
            path.write_text(original)


def _copy_package() -> None:
    """Make a copy that is imported in place of the installed package, in all processes."""
    installed, copied = Path(sysconfig.get_path("purelib")) / "fugu", set[Path]()
    for root in (SOURCE, installed):
        for path in root.rglob("*"):
            target = SITE / "fugu" / path.relative_to(root)
            if path.is_file() and path.parent.name != "__pycache__":
                copied.add(target)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists() or target.read_bytes() != path.read_bytes():
                    shutil.copy(path, target)
    for path in (SITE / "fugu").rglob("*.py"):
        if path not in copied:
            path.unlink()
    (SITE / "sitecustomize.py").write_text(DISABLE)
    rest = [path for path in (SITE / "fugu").iterdir() if path.name not in PACKAGES]
    command = [sys.executable, "-m", "compileall", "-q", *map(str, rest)]
    subprocess.run(command, check=True)  # of mutated packages there is no bytecode to mix up


class Coverage:
    """Which tests run which lines, and how long they take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.slowest = defaultdict[str, float](float)  # of a file; it may set up what others use
        self._tests = defaultdict[str, set[str]](set)
        self._of_module = defaultdict[str, set[str]](set)

    def measure(self, server: Server, files: list[str], progress: Progress) -> None:
        """Run all test files that have changed since they were run last."""
        LINES.mkdir(parents=True, exist_ok=True)
        task = progress.add_task("measuring tests", total=len(files))
        for file in files:
            kept = LINES / f"{file.replace('/', '.')}.json"
            digest = hashlib.sha256((ROOT / file.partition("::")[0]).read_bytes()).hexdigest()
            if not kept.exists() or json.loads(kept.read_text())["digest"] != digest:
                progress.update(task, description=f"measuring {file}")
                raw = BUILD / "raw.json"
                raw.unlink(missing_ok=True)
                answer = server.ask(tests={file: 0.0}, lines=str(raw), limit=1800)
                if answer["failed"] or answer["timeout"]:
                    console.print(f"{file}: without a change: {answer}")
                found = (
                    json.loads(raw.read_text()) if raw.exists() else {"seconds": {}, "lines": {}}
                )
                lines = {_named(line): tests for line, tests in found["lines"].items()}
                found = {"digest": digest, "seconds": found["seconds"], "lines": lines}
                kept.write_text(json.dumps(found))
            self._add(json.loads(kept.read_text()))
            progress.advance(task)

    def _add(self, found: Any) -> None:
        self.seconds |= found["seconds"]
        for name, seconds in found["seconds"].items():
            file = name.partition("::")[0]
            self.slowest[file] = max(self.slowest[file], seconds)
        for line, tests in found["lines"].items():
            passing = set(tests) & found["seconds"].keys()
            self._tests[line] |= passing
            self._of_module[line.partition("|")[0]] |= passing

    def tests_of(self, mutant: Mutant, limit: float) -> dict[str, float]:
        """The quickest tests to run with a mutant, and their seconds; of one file together."""
        statement = _lines_of_statement(SOURCE / mutant.module, mutant.line)
        found: set[str] = set()
        for line in statement or ():
            found |= self._tests[_named(f"{mutant.module}:{line}")]
        if statement is None:  # run at import
            found = self._of_module[mutant.module]
        others = IN_PROCESSES.get(mutant.module, ())
        others += AT_IMPORT if statement is None else ()
        found = found | {name for name in self.seconds if name.startswith(others or "-")}
        found &= self.seconds.keys()
        chosen, spent = [], 0.0
        for name in sorted(found, key=self.seconds.__getitem__):
            if spent < limit or name in AT_IMPORT:
                chosen.append(name)
                spent += self.seconds[name]
        totals = defaultdict[str, float](float)
        for name in chosen:
            totals[name.partition("::")[0]] += self.seconds[name]

        def place(name: str) -> tuple[float, str, float]:
            file = name.partition("::")[0]
            return totals[file], file, self.seconds[name]

        return {name: self.seconds[name] for name in sorted(chosen, key=place)}


def _named(place: str) -> str:
    """A line as edits elsewhere in its file leave it: module, how many are the same, its text."""
    module, _, number = place.rpartition(":")
    lines = (SOURCE / module).read_text().splitlines()
    text = lines[int(number) - 1].strip()
    same = sum(line.strip() == text for line in lines[: int(number)])
    return f"{module}|{same}|{text}"


def _lines_of_statement(path: Path, line: int) -> range | None:
    """The lines of the statement, or of its head; none if it is run when the file is imported."""
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inside, best = False, range(line, line + 1)
    for node in ast.walk(tree):  # parents before children
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if isinstance(node, functions) and line > last:
                inside = True
            if not isinstance(node, functions) and line <= max(last, node.lineno):
                best = range(node.lineno, max(last, node.lineno) + 1)
    return best if inside else None


def check_itself(server: Server, coverage: Coverage) -> None:
    """A negative control: no change must go unnoticed that breaks all, and none be seen in none."""
    module = "algos/optimizers.py"
    source = (SOURCE / module).read_text()
    tests = {name: s for name, s in coverage.seconds.items() if "test_optimizers.py" in name}
    for changed, noticed in ((source + "\n# nothing\n", False), (source + "\n1 / 0\n", True)):
        answer = server.try_source(module, changed, tests, coverage.slowest)
        if (answer["failed"] is not None) != noticed or answer["timeout"]:
            raise SystemExit(f"a control went wrong: {answer}")
    program = "import fugu.algos.optimizers as s; assert 'build/mutation' in s.__file__, s.__file__"
    variables = os.environ | {"PYTHONPATH": str(SITE), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", program], env=variables, check=True)


def check_killers(mutants: list[Mutant], server: Server, coverage: Coverage) -> None:
    """Forget what was killed by tests that fail without a change."""
    killed = {mutant: found for mutant in mutants if (found := outcome(mutant)) and found["killed"]}
    killers = {found["killer"] for found in killed.values()} & coverage.seconds.keys()
    module, tests = mutants[0].module, {name: coverage.seconds[name] for name in sorted(killers)}
    source = (SOURCE / module).read_text()
    while tests:
        answer = server.try_source(module, source, tests, coverage.slowest)
        if not answer["timeout"] and answer["failed"] is None:
            break
        wrong = answer["failed"] or next(name for name in tests if name not in answer["passed"])
        console.print(f"fails without a change: {wrong}", markup=False)
        coverage.seconds.pop(wrong, None)
        tests = {name: s for name, s in tests.items() if name not in (wrong, *answer["passed"])}
        for mutant, found in killed.items():
            if found["killer"] == wrong:
                _file(mutant).unlink()


def run(mutants: list[Mutant], server: Server, coverage: Coverage, options: Options) -> None:
    """Run tests with each mutant, unless that has been done."""
    KEPT.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    reasons, survivors = read_reasons(), 0
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("mutants", total=len(mutants))
        for mutant in mutants:
            known = outcome(mutant)
            again = options.again and mutant.key not in reasons
            if known is None or (again and not known["killed"]):
                known = _try(mutant, server, coverage, options.seconds)
            survivors += not known["killed"]
            progress.update(task, advance=1, description=f"{survivors} survived")


def _try(mutant: Mutant, server: Server, coverage: Coverage, seconds: float) -> dict[str, Any]:
    source = (SOURCE / mutant.module).read_text()
    changed = mutant.apply(source)
    assert changed is not None
    tests = coverage.tests_of(mutant, seconds)
    answer = (
        server.try_source(mutant.module, changed, tests, coverage.slowest)
        if tests
        else {"seconds": 0.0}
    )
    killer = "a time limit" if answer.get("timeout") else answer.get("failed")
    found = {
        "key": mutant.key,
        "killed": killer is not None,
        "killer": killer,
        "tests": len(tests),
        "seconds": round(answer["seconds"], 1),
        "line": mutant.line,
        "diff": _difference(source, changed),
    }
    _file(mutant).write_text(json.dumps(found, indent=1))
    if killer is None:
        was, now = found["diff"]
        console.print(
            f"survived: {mutant.module}:{mutant.line} ({len(tests)} tests, "
            f"{answer['seconds']:.0f} s)\n  - {was}\n  + {now}",
            markup=False,
            highlight=False,
        )
    return found


def _difference(source: str, changed: str) -> tuple[str, str]:
    pairs = zip(source.splitlines(), changed.splitlines(), strict=False)
    return next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))


def _file(mutant: Mutant) -> Path:
    return KEPT / f"{hashlib.sha256(mutant.key.encode()).hexdigest()[:24]}.json"


def outcome(mutant: Mutant) -> dict[str, Any] | None:
    """What came of a mutant, if it has been run."""
    path = _file(mutant)
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def read_reasons() -> dict[str, str]:
    """Why no test should notice some mutants, by their keys."""
    found: dict[str, str] = json.loads((HERE / "mutating" / "equivalent.json").read_text())
    return found


def summary(mutants: Iterable[Mutant], options: Options) -> dict[str, Any]:
    """Counts of each package, and the survivors with the reasons that are known."""
    reasons = read_reasons()
    counts = {name: {"mutants": 0, "killed": 0, "equivalent": 0} for name in PACKAGES}
    survivors = []
    for mutant in mutants:
        found = outcome(mutant)
        assert found is not None
        count = counts[mutant.module.partition("/")[0]]
        count["mutants"] += 1
        count["killed"] += found["killed"]
        if not found["killed"]:
            reason = reasons.get(mutant.key, "")
            count["equivalent"] += bool(reason)
            was, now = found["diff"]
            survivors.append(
                {
                    "file": mutant.module,
                    "line": mutant.line,
                    "was": was,
                    "now": now,
                    "reason": reason,
                }
            )
    return {
        "commit": git("describe", "--always", "--dirty").strip(),
        "seed": options.seed,
        "seconds": options.seconds,
        "packages": counts,
        "survivors": survivors,
    }


def write(title: str, found: dict[str, Any]) -> None:
    """Put a sample into the results, where the others and a `note` on it stay as they were."""
    path = RESULTS / "mutation.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[title] = {**known.get(title, {}), **found}
    path.write_text(json.dumps(known, indent=1) + "\n")
    lines = [
        "# Changes that the tests notice", "",
        "Written by `python benchmarks/trust/mutation.py --title NAME`, which says how to read it.",
        "An equivalent mutant does what the original does, but for its speed or the words of a",
        "message.", "",
    ]  # fmt: skip
    for name, sampled in known.items():
        lines += _section(name, sampled)
    (RESULTS / "mutation.md").write_text("\n".join(lines) + "\n")


def _section(title: str, found: dict[str, Any]) -> list[str]:
    lines = [
        f"## {title}", "",
        f"Seed {found['seed']}, at most {found['seconds']:.0f} s of tests for each mutant, commit "
        f"{found['commit']}. {found.get('note', '')}".strip(), "",
        "| package | mutants | killed | share | equivalent survivors | share killed of the rest |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    rows = dict(found["packages"])
    rows["all"] = {
        key: sum(c[key] for c in rows.values()) for key in ("mutants", "killed", "equivalent")
    }
    for name, count in rows.items():
        total, killed, same = count["mutants"], count["killed"], count["equivalent"]
        lines.append(
            f"| {name} | {total} | {killed} | {killed / max(1, total):.1%} | {same} | "
            f"{killed / max(1, total - same):.1%} |"
        )
    lines += ["", "| survivor | change | why no test should notice it |", "|---|---|---|"]
    for each in found["survivors"]:
        change = f"`{each['was']}` to `{each['now']}`".replace("|", "\\|")
        lines.append(
            f"| `{each['file']}:{each['line']}` | {change} | {each['reason'] or '(a gap)'} |"
        )
    return [*lines, ""]


def test_files() -> list[str]:
    """All files of tests, and modules with examples."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("test_*.py"))]
    modules = [path for name in PACKAGES for path in sorted((SITE / "fugu" / name).rglob("*.py"))]
    found += [path for path in modules if ">>>" in path.read_text()]
    return [path.relative_to(ROOT).as_posix() for path in found] + [*FILES, *AT_IMPORT]


def main(options: Options) -> None:
    """Draw, run, and write."""
    BUILD.mkdir(parents=True, exist_ok=True)
    drawn = sample(SOURCE, PACKAGES, options.count, options.seed)
    mutants = [mutant for mutant in drawn if options.only in mutant.module]
    server, coverage = Server(), Coverage()
    files = test_files()
    server.ask(preload=files)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        coverage.measure(server, files, progress)
    check_itself(server, coverage)
    run(mutants, server, coverage, options)
    check_killers(mutants, server, coverage)
    run(mutants, server, coverage, options)  # those whose killer was none
    found = summary(mutants, options)
    killed = sum(count["killed"] for count in found["packages"].values())
    console.print(f"{killed} of {len(mutants)} mutants killed: {killed / max(1, len(mutants)):.1%}")
    if options.title:
        write(options.title, found)


if __name__ == "__main__":
    main(tyro.cli(Options))
