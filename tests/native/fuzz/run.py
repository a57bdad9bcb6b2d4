"""Fuzzes native code, guided by what it covers, under the address and undefined sanitizers.

    python tests/native/fuzz/run.py [--seconds 60] [--only packer ...]

Needs Clang with its libFuzzer. Inputs that reached something new stay in build/fuzz, so that the
next run begins where this one ended. Exit status 1 if something was found.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tyro

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NATIVE, FOLDER = ROOT / "native", ROOT / "build" / "fuzz"
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(HERE.parent / "sanitize"))

from staging import stage  # noqa: E402

WATCHED = ["-g", "-O1", "-fno-omit-frame-pointer", "-ffp-contract=off", "-fno-sanitize-recover=all"]
WATCHED += [
    "-fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow",
    "-fno-sanitize=vptr,function",
]
NAMES = ("environments", "packer", "pictures", "networks")
MOST = {"environments": 1024, "packer": 512, "pictures": 512, "networks": 512}  # bytes of an input


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    seconds: int = 60
    """Of each harness."""
    only: tuple[str, ...] = ()
    """Only these harnesses."""


@dataclass
class Finding:
    """What a harness came to."""

    harness: str
    seconds: float = 0.0
    executions: int = 0
    edges: int = 0
    edges_of: int = 0
    corpus: int = 0
    findings: list[str] = field(default_factory=list)


def compiler(name: str) -> str:
    """Clang's, or an error that says how to get it."""
    found = os.environ.get("CLANG", "clang") + ("++" if name == "c++" else "")
    if not shutil.which(found):
        raise SystemExit("fuzz: needs Clang and its libFuzzer (apt-get install clang llvm)")
    return found


def build_environments(folder: Path) -> dict[str, str]:
    """Libraries of all native environments."""
    folder.mkdir(parents=True, exist_ok=True)
    for header in sorted(NATIVE.glob("envs/*/*.h")):
        source = folder / f"{header.stem}.c"
        source.write_text(f'#include "{header}"\nFUGU_EXPORT({header.stem})\n')
        command = [compiler("c"), "-std=c99", *WATCHED, "-ffreestanding", "-fPIC", "-shared"]
        command += [f"-I{NATIVE / 'core'}", str(source), "-o", str(source.with_suffix(".so"))]
        subprocess.run(command, check=True)
    return {"FUGU_FUZZ_ENVS": str(folder)}


def build_package(folder: Path) -> dict[str, str]:
    """The extension, and an interpreter's settings to find it."""
    site = stage(folder, (compiler("c"), compiler("c++")), WATCHED)
    paths = [site, HERE, ROOT / "tests"]
    return {
        "FUGU_FUZZ_PYTHON": sys.executable,
        "PYTHONPATH": ":".join(map(str, paths)),
        "PYTHONMALLOC": "malloc",
    }


def build(name: str) -> tuple[Path, dict[str, str]]:
    """A harness, and the variables that it runs with."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    more: list[str] = []
    variables: dict[str, str] = {}
    if name == "environments":
        variables = build_environments(folder / "envs")
        more = [str(NATIVE / "bind" / "library.cpp"), "-ldl"]
    elif name == "packer":
        variables = build_package(folder / "package")
        libraries = sysconfig.get_config_var("LIBDIR")
        more = [f"-I{sysconfig.get_path('include')}", f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
        more += [f"-lpython{sysconfig.get_config_var('LDVERSION')}"]
    elif name == "networks":
        more = ["-DFUGU_TARGET=baseline", str(NATIVE / "nets" / "target.cpp")]
    command = [compiler("c++"), "-std=c++17", *WATCHED, "-fsanitize=fuzzer", "-DFUGU_ONE_TARGET"]
    command += [f"-I{NATIVE}", f"-I{NATIVE / 'core'}", str(HERE / f"{name}.cpp"), *more]
    subprocess.run([*command, "-pthread", "-o", str(folder / "run")], check=True)
    return folder / "run", variables


def plant(folder: Path) -> None:
    """Inputs to begin with, where there are none."""
    folder.mkdir(exist_ok=True)
    for i in range(0 if any(folder.iterdir()) else 128):
        chance = random.Random(i)
        (folder / f"seed{i}").write_bytes(bytes([i, i // 32, *[0] * 20]) + chance.randbytes(80))


def run(name: str, seconds: int) -> Finding:
    """Build a harness and let it look for so long."""
    print(f"{name}: building", flush=True)
    program, variables = build(name)
    corpus, found = program.parent / "corpus", program.parent / "found"
    plant(corpus)
    found.mkdir(exist_ok=True)
    before = set(found.iterdir())
    command = [str(program), str(corpus), f"-max_total_time={seconds}", f"-max_len={MOST[name]}"]
    command += [f"-artifact_prefix={found}/", "-timeout=20", "-rss_limit_mb=4096"]
    command += ["-print_final_stats=1", "-len_control=0"]
    variables["ASAN_OPTIONS"] = "detect_leaks=0" if name == "packer" else "detect_leaks=1"
    finding, began, said = Finding(name), time.monotonic(), []
    with subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr
        for line in process.stderr:
            said = [*said[-200:], line]
            if match := re.match(r"#(\d+)\s.*cov: (\d+)", line):
                finding.executions, finding.edges = map(int, match.groups())
                if sys.stderr.isatty():
                    text = f"{finding.executions:,} executions, {finding.edges:,} edges"
                    print(f"\r{name}: {text}", end="\033[K", file=sys.stderr)
            elif match := re.match(r"INFO: Loaded .*\((\d+) inline", line):
                finding.edges_of = int(match[1])
            elif match := re.match(r"stat::number_of_executed_units: (\d+)", line):
                finding.executions = int(match[1])
    finding.seconds = round(time.monotonic() - began, 1)
    finding.corpus = sum(1 for _ in corpus.iterdir())
    finding.findings = sorted(path.name for path in set(found.iterdir()) - before)
    if process.returncode and not finding.findings:
        finding.findings = [f"status {process.returncode}"]
    if finding.findings:
        print("".join(said), file=sys.stderr)
    print(
        f"\r{name}: {finding.executions:,} executions, {finding.edges:,} of {finding.edges_of:,} "
        f"edges, {finding.seconds:.0f} s, {len(finding.findings)} findings",
        flush=True,
    )
    return finding


def write(findings: list[Finding]) -> None:
    """The results, beside those of harnesses that did not run now."""
    described = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=False)
    file = RESULTS / "fuzz_native.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known |= {f.harness: {**asdict(f), "commit": commit.stdout.strip()} for f in findings}
    file.write_text(json.dumps(known, indent=1) + "\n")
    lines = [
        "# Native code, fuzzed",
        "",
        "Guided by coverage, under the address and undefined sanitizers: `make fuzz`. Edges are "
        "those that the harness reached, of all that were compiled in.",
        "",
        "| harness | executions | edges | inputs kept | seconds | findings | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {f['harness']} | {f['executions']:,} | {f['edges']:,} of {f['edges_of']:,} | "
        f"{f['corpus']:,} | {f['seconds']:.0f} | {len(f['findings'])} | {f['commit']} |"
        for f in known.values()
    ]
    file.with_suffix(".md").write_text("\n".join([*lines, ""]))


def main(options: Options) -> int:
    """Run the harnesses one after the other."""
    for name in options.only:
        if name not in NAMES:
            raise SystemExit(f"fuzz: given {name!r}; allowed: {', '.join(NAMES)}")
    findings = [run(name, options.seconds) for name in options.only or NAMES]
    write(findings)
    return int(any(finding.findings for finding in findings))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
