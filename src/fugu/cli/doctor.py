"""`fugu doctor`: what this machine and this installation have, and what is wrong with them.

Every probe is a generator of rows in `_PROBES`. The error of one that fails is shown in its row and
stops no other.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import operator
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import fugu
from fugu.core.machine import free_memory, usable_cores

DISTRIBUTION = "fugu-rl"
SMALL_SHARED_MEMORY = 64 << 20  # the default of Docker
FEW_OPEN_FILES = 1024
Status = Literal["ok", "info", "warn", "error"]
_STYLES = {"ok": "green", "info": "", "warn": "yellow", "error": "bold red"}


@dataclass(frozen=True)
class Row:
    """One finding."""

    name: str
    value: str
    status: Status = "info"
    """ok or info: nothing to do; warn: something works less well; error: something is broken."""
    advice: str = ""
    """What to do about it."""


@dataclass(frozen=True)
class Section:
    """Findings of one kind."""

    name: str
    rows: tuple[Row, ...]


Probe = Callable[[], Iterator[Row]]


@dataclass(frozen=True)
class Doctor:
    """Show what this machine and this installation have, and what is wrong with them."""

    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> int:
        """Collect and show the findings; return 0 if nothing required is broken."""
        with contextlib.redirect_stdout(sys.stderr):  # packages may print when they are imported
            sections = collect()
        healthy = not _named(sections, "error")
        if self.json:
            report = {"healthy": healthy, "sections": [asdict(section) for section in sections]}
            print(json.dumps(report, indent=2))
        else:
            show(sections)
        return 0 if healthy else 1


def collect() -> list[Section]:
    """Run every probe."""
    return [
        Section(
            title, tuple(row for name, probe in probes.items() for row in _guarded(name, probe))
        )
        for title, probes in _PROBES.items()
    ]


def _guarded(name: str, probe: Probe) -> Iterator[Row]:
    """Yield the rows of a probe and, if it fails, its error in a row called `name`."""
    try:
        yield from probe()
    except Exception as error:
        yield Row(name, f"unknown, the probe failed: {type(error).__name__}: {error}", "warn")


# ---------------------------------------------------------------------- fugu and Python


def _version() -> Iterator[Row]:
    version, installed = fugu.__version__, _installed(DISTRIBUTION)
    if installed == version:
        yield Row("version", version, "ok")
    elif installed is None:
        advice = f"pip install {DISTRIBUTION}"
        yield Row("version", f"{version}, which runs without being installed", "warn", advice)
    else:
        advice = f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
        yield Row("version", f"{version}, but pip installed {installed}", "warn", advice)
    yield Row("folder", str(Path(fugu.__file__).parent))


def _native() -> Iterator[Row]:
    native = importlib.import_module("fugu.native")
    if native.available:
        yield Row("native extension", str(importlib.import_module("fugu._native").__file__), "ok")
        return
    advice = (
        "fugu.make and training need it; with a C++ compiler, build it: "
        f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
    )
    yield Row("native extension", f"missing: {native.reason}", "warn", advice)


def _python() -> Iterator[Row]:
    yield Row("version", f"{platform.python_implementation()} {platform.python_version()}", "ok")
    yield Row("executable", sys.executable)
    build = "with the GIL"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        locked = getattr(sys, "_is_gil_enabled", lambda: True)()
        build = f"free-threaded, GIL {'on' if locked else 'off'}"
    yield Row("build", build)
    yield Row("platform", platform.platform())


# ---------------------------------------------------------------------- packages

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Requirement:
    """One line of a package's Requires-Dist."""

    name: str
    extras: tuple[str, ...]
    versions: str
    """Such as ">=2.0,<3"; empty if any will do."""
    extra: str
    """The extra that brings it; empty if it is always required."""
    condition: str
    """The rest of its marker, which is shown and not judged."""

    @staticmethod
    def parse(line: str) -> Requirement:
        """Read `name[extras]versions; marker`."""
        match = re.fullmatch(r"([\w.-]+)\s*(?:\[(.*?)\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?", line)
        if match is None:
            raise ValueError(f"given {line!r}; allowed: name[extras]versions; marker")
        name, extras, versions, marker = (part or "" for part in match.groups())
        clause = r"extra\s*==\s*[\"']([^\"']+)[\"']"
        extra = re.search(clause, marker)
        condition = re.sub(rf"(\s*and\s+)?{clause}(\s+and\s+)?", "", marker).strip(" ()")
        inner = tuple(re.findall(r"[\w.-]+", extras))
        return Requirement(
            name, inner, versions.replace(" ", ""), extra.group(1) if extra else "", condition
        )


def satisfies(version: str, versions: str) -> bool:
    """Return whether a version is in a range, judged by its numbers alone (no pre-releases).

    >>> satisfies("2.13.0+cpu", ">=2.5,<3"), satisfies("81.0", "<81"), satisfies("2", "==2.0")
    (True, False, True)
    """
    for clause in filter(None, versions.split(",")):
        match = re.fullmatch(r"(\D+)(\d+(?:\.\d+)*)", clause)
        if match is None or match.group(1) not in _COMPARISONS:
            raise ValueError(f"given {clause!r}; allowed: {' '.join(_COMPARISONS)} and numbers")
        pairs = zip_longest(_numbers(version), _numbers(match.group(2)), fillvalue=0)
        given, bound = zip(*pairs, strict=True)
        if not _COMPARISONS[match.group(1)](given, bound):
            return False
    return True


def _numbers(version: str) -> list[int]:
    match = re.match(r"\d+(\.\d+)*", version)
    if match is None:
        raise ValueError(f"given version {version!r}; allowed: one that begins with a number")
    return [int(part) for part in match.group().split(".")]


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements() -> list[Requirement]:
    return [Requirement.parse(line) for line in importlib.metadata.requires(DISTRIBUTION) or ()]


def _judge(requirement: Requirement) -> tuple[str, Status]:
    """Describe the installed version: "ok", "info" if it is missing, "warn" if it does not fit."""
    version, needed = _installed(requirement.name), requirement.versions or "any"
    if version is not None:
        fits = satisfies(version, requirement.versions)
        return (version, "ok") if fits else (f"{version} (needs {needed})", "warn")
    if requirement.condition:
        return f"missing (only where {requirement.condition})", "ok"
    return "missing", "info"


def _required() -> Iterator[Row]:
    for requirement in _requirements():
        if not requirement.extra:
            yield from _guarded(requirement.name, partial(_required_row, requirement))


def _required_row(requirement: Requirement) -> Iterator[Row]:
    name, versions = requirement.name, requirement.versions
    value, status = _judge(requirement)
    if status == "ok" and _installed(name):
        value = f"{value} (needs {versions or 'any'})"
        try:
            importlib.import_module(name.replace("-", "_"))
        except Exception as error:
            value, status = f"{value}, but it does not import: {error}", "error"
    if status == "ok":
        yield Row(name, value, status)
    else:
        yield Row(name, value, "error", f'pip install --force-reinstall "{name}{versions}"')


def _extras() -> Iterator[Row]:
    requirements = _requirements()
    for extra in importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ():
        yield from _guarded(extra, partial(_extra_row, extra, requirements))


def _extra_row(extra: str, requirements: list[Requirement]) -> Iterator[Row]:
    parts: list[tuple[str, Status]] = []
    for requirement in (one for one in requirements if one.extra == extra):
        if requirement.name != DISTRIBUTION:
            text, status = _judge(requirement)
            parts.append((f"{requirement.name} {text}", status))
            continue
        for other in requirement.extras:  # has a row of its own
            (row,) = _extra_row(other, requirements)
            parts.append((f"[{other}]{'' if row.status == 'ok' else ' in part'}", row.status))
    statuses = {status for _, status in parts}
    worst: Status = "warn" if "warn" in statuses else "info" if "info" in statuses else "ok"
    advice = f'pip install "{DISTRIBUTION}[{extra}]"'
    yield Row(extra, ", ".join(text for text, _ in parts) or "nothing", worst, advice)


# ---------------------------------------------------------------------- processor and memory


def _model() -> Iterator[Row]:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
        model = done.stdout.strip()
    else:
        model = _cpuinfo().get("model name", "") or platform.processor()
    yield Row("model", model or platform.machine())


def _cpuinfo() -> dict[str, str]:
    """Return what Linux says about the first processor; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    first = path.read_text().partition("\n\n")[0] if path.exists() else ""
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cores() -> Iterator[Row]:
    files = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    yield Row("physical cores", str(len({file.read_text() for file in files}) or "unknown"))
    yield Row("logical cores", str(os.cpu_count()))
    yield Row("usable cores", str(usable_cores()))


def _quota() -> Iterator[Row]:
    """Yield the share of the processor that a container may use: cgroup version 2, then 1."""
    folder = Path("/sys/fs/cgroup")
    quota, period = "max", ""
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text().split()
    elif (folder / "cpu/cpu.cfs_quota_us").exists():
        quota = (folder / "cpu/cpu.cfs_quota_us").read_text().strip()
        period = (folder / "cpu/cpu.cfs_period_us").read_text().strip()
    if quota in ("max", "-1"):
        yield Row("cgroup quota", "none")
        return
    cores = int(quota) / int(period)
    short = cores < usable_cores()
    advice = f"start at most {max(1, int(cores))} workers" if short else ""
    yield Row("cgroup quota", f"{cores:g} cores", "warn" if short else "info", advice)


def _features() -> Iterator[Row]:
    if platform.machine().lower() in ("arm64", "aarch64"):
        yield Row("features", "neon")  # part of every processor of 64 bits
        return
    flags, wanted = _cpuinfo().get("flags"), ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    if flags is None:
        yield Row("features", "unknown")
        return
    lacking = [name for name in wanted if name not in flags.split()]
    yield Row("features", ", ".join(n for n in wanted if n not in lacking) or "none that fugu uses")
    if lacking:
        yield Row("features it lacks", ", ".join(lacking))


def _memory() -> Iterator[Row]:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Row("memory", f"{_size(total)}, {_size(free_memory())} available")


def _shared_memory() -> Iterator[Row]:
    if not Path("/dev/shm").exists():
        yield Row("shared memory", "no /dev/shm here; bounded by memory alone")
        return
    facts = os.statvfs("/dev/shm")
    total, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    small = min(total, free) <= SMALL_SHARED_MEMORY
    advice = (
        "the buffers of many environments will not fit; in Docker, start the container with "
        "--shm-size=2g (or --ipc=host); elsewhere, mount -o remount,size=2G /dev/shm"
    )
    value = f"{_size(total)}, {_size(free)} free"
    yield Row("shared memory", value, "warn" if small else "ok", advice if small else "")


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


# ---------------------------------------------------------------------- processes and compilers


def _open_files() -> Iterator[Row]:
    import resource  # not on Windows

    soft, hard = (
        "unlimited" if bound == resource.RLIM_INFINITY else str(bound)
        for bound in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    few = soft != "unlimited" and int(soft) < FEW_OPEN_FILES
    advice = "many workers need more: ulimit -n 4096" if few else ""
    yield Row("open files", f"{soft} (hard limit {hard})", "warn" if few else "ok", advice)


def _start_methods() -> Iterator[Row]:
    default, *others = multiprocessing.get_all_start_methods()
    yield Row("start methods", ", ".join([f"{default} (default)", *others]))


def _compilers() -> Iterator[Row]:
    found = {name: shutil.which(name) for name in ("cc", "c++", "gcc", "g++", "clang", "clang++")}
    zig = importlib.util.find_spec("ziglang")
    found["ziglang"] = zig.origin if zig else None
    yield from (Row(name, path, "ok") for name, path in found.items() if path)
    if missing := [name for name, path in found.items() if not path]:
        none = len(missing) == len(found)
        advice = "only needed to build native code; the easiest one: pip install ziglang"
        status: Status = "warn" if none else "info"
        yield Row("not found", ", ".join(missing), status, advice if none else "")


# ---------------------------------------------------------------------- sandbox


def _isolation() -> Iterator[Row]:
    """Start the default executor, which tests its isolation with a program of its own."""
    if sys.platform != "linux":
        yield Row("isolation", "not tested: it needs Linux; elsewhere, use the backend docker")
        return
    zygote = importlib.import_module("fugu.sandbox.zygote")
    with zygote.ZygoteExecutor(missing_walls=True) as executor:
        facts = executor.facts()
    parts = {
        "Landlock": facts["landlock"],
        "seccomp": facts["seccomp"],
        "bubblewrap": facts["jail"] != "none",
    }
    used = ", ".join(part for part, used in parts.items() if used) or "nothing"
    if not facts["missing"]:
        yield Row("isolation", f"the self-test passed, with {used}", "ok")
        return
    advice = (
        "the sandbox refuses to run programs here; it needs Linux 6.12 or later with Landlock and "
        "seccomp, or bubblewrap; elsewhere use the backend gvisor or docker"
    )
    value = f"the self-test failed, with {used}: {', '.join(facts['missing'])} not isolated"
    yield Row("isolation", value, "warn", advice)


# ---------------------------------------------------------------------- torch


def _torch() -> Iterator[Row]:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        advice = f'training needs it: pip install "{DISTRIBUTION}[train]"'
        value = f"does not import: {type(error).__name__}: {error}"
        yield Row("version", value, "warn", advice)
        return
    yield Row("version", str(torch.__version__), "ok")
    inside, between = torch.get_num_threads(), torch.get_num_interop_threads()
    yield Row("threads", f"{inside} within an operation, {between} between operations")
    there = torch.backends.mps.is_available()
    yield Row("MPS", "available" if there else "not available", "ok" if there else "info")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Row("CUDA", f"{torch.version.cuda}: {', '.join(names)}", "ok")
    else:
        built = torch.version.cuda
        why = f"built for CUDA {built}, but no device" if built else "not in this build"
        yield Row("CUDA", f"not available: {why}")


# ---------------------------------------------------------------------- all of them

_PROBES: dict[str, dict[str, Probe]] = {
    "fugu": {"version": _version, "native extension": _native},
    "Python": {"version": _python},
    "required packages": {"packages": _required},
    "processor": {"model": _model, "cores": _cores, "cgroup quota": _quota, "features": _features},
    "memory": {"memory": _memory, "shared memory": _shared_memory},
    "processes": {"open files": _open_files, "start methods": _start_methods},
    "sandbox": {"isolation": _isolation},
    "torch": {"version": _torch},
    "extras": {"extras": _extras},
    "compilers": {"compilers": _compilers},
}


def show(sections: list[Section]) -> None:
    """Print the findings as tables, and a line that sums them up."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    width = max(len(row.name) for section in sections for row in section.rows)
    for section in sections:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(width=5)
        table.add_column(width=width)
        table.add_column(overflow="fold")
        for row in section.rows:
            value = Text(row.value)
            if row.advice:
                value.append(f"\n{row.advice}", style="dim" if row.status == "ok" else "cyan")
            mark = "" if row.status == "info" else row.status
            table.add_row(Text(mark, style=_STYLES[row.status]), Text(row.name), value)
        console.print(Text(section.name, style="bold"), table, "", sep="\n")
    broken, warnings = _named(sections, "error"), _named(sections, "warn")
    summary = f"Broken: {', '.join(broken)}." if broken else "Healthy: nothing required is broken."
    summary += f" Warnings: {', '.join(warnings)}." if warnings else ""
    console.print(summary, style="bold red" if broken else "green")


def _named(sections: list[Section], status: Status) -> list[str]:
    rows = ((section.name, row) for section in sections for row in section.rows)
    return [f"{title}: {row.name}" for title, row in rows if row.status == status]
