"""`fugu doctor`: what this machine and this installation have, and what is wrong with them.

Every probe is a generator of rows and stands in `_PROBES`. One that fails shows its error in its
row and stops no other.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import fugu
from fugu.cli.requirements import Requirement, satisfies
from fugu.core.machine import usable_cores

DISTRIBUTION = "fugu-rl"
Status = Literal["ok", "info", "warn", "error"]


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
        """Collect and show; 0 if nothing required is broken."""
        with contextlib.redirect_stdout(sys.stderr):  # what a package prints when it is imported
            sections = collect()
        if self.json:
            print(json.dumps(to_dict(sections), indent=2))
        else:
            show(sections)
        return 0 if healthy(sections) else 1


def collect() -> list[Section]:
    """Run every probe."""
    return [
        Section(title, tuple(row for name, probe in probes.items() for row in guarded(name, probe)))
        for title, probes in _PROBES.items()
    ]


def guarded(name: str, probe: Probe) -> Iterator[Row]:
    """The rows of a probe; where it fails, its error as a row called `name`."""
    try:
        yield from probe()
    except Exception as error:
        yield Row(name, f"unknown, the probe failed: {type(error).__name__}: {error}", "warn")


def healthy(sections: list[Section]) -> bool:
    """Whether nothing required is broken."""
    return not any(row.status == "error" for section in sections for row in section.rows)


def to_dict(sections: list[Section]) -> dict[str, Any]:
    """The findings as JSON has them."""
    return {"healthy": healthy(sections), "sections": [asdict(section) for section in sections]}


# ------------------------------------------------------------------ fugu and Python


def _version() -> Iterator[Row]:
    declared = _installed(DISTRIBUTION)
    if declared is None:
        advice = f"pip install {DISTRIBUTION}"
        yield Row("version", f"{fugu.__version__}, run without being installed", "warn", advice)
    elif declared != fugu.__version__:
        advice = f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
        value = f"{fugu.__version__}, but {declared} is what pip installed"
        yield Row("version", value, "warn", advice)
    else:
        yield Row("version", fugu.__version__, "ok")
    yield Row("folder", str(Path(fugu.__file__).parent))


def _native() -> Iterator[Row]:
    native = importlib.import_module("fugu.native")
    if native.available:
        path = importlib.import_module("fugu._native").__file__
        yield Row("native extension", str(path), "ok")
        return
    advice = (
        "everything works without it, more slowly; with a C++ compiler, build it: "
        f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
    )
    yield Row("native extension", f"missing: {native.reason}", "warn", advice)


def _python() -> Iterator[Row]:
    yield Row("version", f"{platform.python_implementation()} {platform.python_version()}", "ok")
    yield Row("executable", sys.executable)
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    lock = "with the GIL" if not free else f"free-threaded, GIL {'on' if locked else 'off'}"
    yield Row("build", lock)
    yield Row("platform", platform.platform())


# ------------------------------------------------------------------ packages


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements() -> list[Requirement]:
    return [Requirement.parse(line) for line in importlib.metadata.requires(DISTRIBUTION) or ()]


def _required() -> Iterator[Row]:
    for requirement in _requirements():
        if not requirement.extra:
            yield from guarded(requirement.name, partial(_required_row, requirement))


def _required_row(requirement: Requirement) -> Iterator[Row]:
    name, versions = requirement.name, requirement.versions
    advice = f'pip install --upgrade "{name}{versions}"'
    version = _installed(name)
    if version is None and requirement.condition:
        yield Row(name, f"missing; needed only where {requirement.condition}")
    elif version is None:
        yield Row(name, f"missing; needs {versions or 'any'}", "error", advice)
    elif not satisfies(version, versions):
        yield Row(name, f"{version}; needs {versions}", "error", advice)
    else:
        try:
            importlib.import_module(name.replace("-", "_"))
        except Exception as error:
            advice = f'pip install --force-reinstall "{name}{versions}"'
            yield Row(name, f"{version}, but it does not import: {error}", "error", advice)
        else:
            yield Row(name, f"{version} (needs {versions or 'any'})", "ok")


def _extras() -> Iterator[Row]:
    metadata = importlib.metadata.metadata(DISTRIBUTION)
    requirements = _requirements()
    for extra in metadata.get_all("Provides-Extra") or ():
        yield from guarded(extra, partial(_extra_row, extra, requirements))


def _extra_row(extra: str, requirements: list[Requirement]) -> Iterator[Row]:
    parts: list[tuple[str, Status]] = []
    for requirement in (r for r in requirements if r.extra == extra):
        if requirement.name != DISTRIBUTION:
            parts.append(_judge(requirement))
            continue
        for other in requirement.extras:  # has a row of its own
            (row,) = _extra_row(other, requirements)
            parts.append((f"[{other}]{'' if row.status == 'ok' else ' in part'}", row.status))
    statuses = {status for _, status in parts}
    worst: Status = "warn" if "warn" in statuses else "info" if "info" in statuses else "ok"
    advice = f'pip install "{DISTRIBUTION}[{extra}]"'
    yield Row(extra, ", ".join(text for text, _ in parts) or "nothing", worst, advice)


def _judge(requirement: Requirement) -> tuple[str, Status]:
    """A package of an extra as it is shown, and how it stands."""
    name, versions = requirement.name, requirement.versions
    version = _installed(name)
    if version is None and requirement.condition:
        return f"{name} missing (only where {requirement.condition})", "ok"
    if version is None:
        return f"{name} missing", "info"
    if not satisfies(version, versions):
        return f"{name} {version} (needs {versions})", "warn"
    return f"{name} {version}", "ok"


# ------------------------------------------------------------------ processor and memory


def _sysctl(name: str) -> str:
    command = ["sysctl", "-n", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    return done.stdout.strip()


def _is_arm() -> bool:
    return platform.machine().lower() in ("arm64", "aarch64")


def _cpuinfo() -> dict[str, str]:
    """What Linux tells of the first processor."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _model() -> Iterator[Row]:
    if sys.platform == "darwin":
        model = _sysctl("machdep.cpu.brand_string")
    elif sys.platform == "linux":
        model = _cpuinfo().get("model name", "")
    else:
        model = platform.processor()
    yield Row("model", model or platform.machine())


def _physical_cores() -> Iterator[Row]:
    if sys.platform == "darwin":
        count = int(_sysctl("hw.physicalcpu"))
    else:
        files = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
        count = len({file.read_text() for file in files})
    yield Row("physical cores", str(count or "unknown"))


def _cores() -> Iterator[Row]:
    yield Row("logical cores", str(os.cpu_count()))
    yield Row("usable cores", str(usable_cores()))


def _quota() -> Iterator[Row]:
    """The share of the processor that a container is held to: cgroup version 2, then 1."""
    folder = Path("/sys/fs/cgroup")
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text().split()
    elif (folder / "cpu/cpu.cfs_quota_us").exists():
        quota = (folder / "cpu/cpu.cfs_quota_us").read_text().strip()
        period = (folder / "cpu/cpu.cfs_period_us").read_text().strip()
    else:
        quota, period = "max", ""
    if quota in ("max", "-1"):
        yield Row("cgroup quota", "none")
        return
    cores = int(quota) / int(period)
    short = cores < usable_cores()
    advice = f"start at most {max(1, int(cores))} workers" if short else ""
    yield Row("cgroup quota", f"{cores:g} cores", "warn" if short else "info", advice)


def _features() -> Iterator[Row]:
    wanted = ("neon",) if _is_arm() else ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    if _is_arm() and sys.platform == "darwin":
        flags = {"neon"}
    elif sys.platform == "darwin":
        names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
        flags = set(" ".join(_sysctl(name) for name in names).lower().split())
    else:
        facts = _cpuinfo()
        flags = set(facts.get("flags", facts.get("Features", "")).split())
        flags |= {"neon"} if "asimd" in flags else set()
    yield Row("features", ", ".join(f for f in wanted if f in flags) or "none of ours")
    if lacking := [f for f in wanted if f not in flags]:
        yield Row("features it lacks", ", ".join(lacking))


def _memory() -> Iterator[Row]:
    if sys.platform == "linux":
        lines = Path("/proc/meminfo").read_text().splitlines()
        facts = {name: int(rest.split()[0]) * 1024 for name, rest in (s.split(":") for s in lines)}
        yield Row("memory", f"{_size(facts['MemTotal'])}, {_size(facts['MemAvailable'])} available")
    else:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        yield Row("memory", _size(total))


def _shared_memory() -> Iterator[Row]:
    if not Path("/dev/shm").exists():
        yield Row("shared memory", "no /dev/shm here; bounded by memory alone")
        return
    facts = os.statvfs("/dev/shm")
    total, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    value = f"{_size(total)}, {_size(free)} free"
    if min(total, free) > 64 << 20:  # what a container of Docker has unless it is told otherwise
        yield Row("shared memory", value, "ok")
        return
    advice = (
        "slabs of many environments will not fit; in Docker, start the container with "
        "--shm-size=2g (or --ipc=host); elsewhere, mount -o remount,size=2G /dev/shm"
    )
    yield Row("shared memory", value, "warn", advice)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


# ------------------------------------------------------------------ processes and compilers


def _open_files() -> Iterator[Row]:
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < 1024
    shown = [
        "unlimited" if bound == resource.RLIM_INFINITY else str(bound) for bound in (soft, hard)
    ]
    advice = "many workers need more: ulimit -n 4096" if few else ""
    yield Row("open files", f"{shown[0]} (hard limit {shown[1]})", "warn" if few else "ok", advice)


def _start_methods() -> Iterator[Row]:
    default, *others = multiprocessing.get_all_start_methods()
    yield Row("start methods", ", ".join([f"{default} (default)", *others]))


def _compilers() -> Iterator[Row]:
    found = {name: shutil.which(name) for name in ("cc", "c++", "gcc", "g++", "clang", "clang++")}
    zig = importlib.util.find_spec("ziglang")
    found["ziglang"] = zig.origin if zig else None
    for name, path in found.items():
        if path:
            yield Row(name, path, "ok")
    if missing := [name for name, path in found.items() if not path]:
        none = len(missing) == len(found)
        advice = "only to build native code; the shortest way: pip install ziglang" if none else ""
        yield Row("not found", ", ".join(missing), "warn" if none else "info", advice)


# ------------------------------------------------------------------ sandbox


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


# ------------------------------------------------------------------ torch


def _torch() -> Iterator[Row]:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        advice = f'training needs it: pip install "{DISTRIBUTION}[train]"'
        value = f"does not import: {type(error).__name__}: {error}"
        yield Row("version", value, "warn", advice)
        return
    yield Row("version", str(torch.__version__), "ok")
    for name, probe in {"threads": _threads, "CUDA": _cuda, "MPS": _mps}.items():
        yield from guarded(name, partial(probe, torch))


def _threads(torch: Any) -> Iterator[Row]:
    inside, between = torch.get_num_threads(), torch.get_num_interop_threads()
    yield Row("threads", f"{inside} within an operation, {between} between operations")


def _cuda(torch: Any) -> Iterator[Row]:
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"built for CUDA {built}, but no device" if built else "not in this build"
        yield Row("CUDA", f"not available: {why}")
        return
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Row("CUDA", f"{torch.version.cuda}: {', '.join(names)}", "ok")


def _mps(torch: Any) -> Iterator[Row]:
    there = torch.backends.mps.is_available()
    yield Row("MPS", "available" if there else "not available", "ok" if there else "info")


# ------------------------------------------------------------------ all of them

_PROBES: dict[str, dict[str, Probe]] = {
    "fugu": {"version": _version, "native extension": _native},
    "Python": {"version": _python},
    "required packages": {"packages": _required},
    "processor": {
        "model": _model,
        "physical cores": _physical_cores,
        "cores": _cores,
        "cgroup quota": _quota,
        "features": _features,
    },
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
    styles = {"ok": "green", "info": "", "warn": "yellow", "error": "bold red"}
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
            table.add_row(Text(mark, style=styles[row.status]), Text(row.name), value)
        console.print(Text(section.name, style="bold"))
        console.print(table)
        console.print()
    console.print(_summary(sections), style="green" if healthy(sections) else "bold red")


def _summary(sections: list[Section]) -> str:
    def named(status: Status) -> list[str]:
        rows = ((section.name, row) for section in sections for row in section.rows)
        return [f"{title}: {row.name}" for title, row in rows if row.status == status]

    broken, warnings = named("error"), named("warn")
    state = f"Broken: {', '.join(broken)}." if broken else "Healthy: nothing required is broken."
    return f"{state} Warnings: {', '.join(warnings)}." if warnings else state
