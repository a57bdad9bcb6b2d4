"""Commands that start the guest: by itself, or inside bubblewrap, gVisor or a container."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from fugu.sandbox.execution import SandboxError

GUEST = Path(__file__).parent / "guest"
_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
_BEGIN = "import sys; sys.path.insert(0, sys.argv[1]); from guest.serve import main; main()"
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # the same order of sets in each run; cleared at the start
INSIDE = "/fugu"  # the guest's folder in a jail
SCRATCH = "/scratch"
_LOOP = "/fugu/supervise.so"
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache")


@functools.cache
def python() -> str:
    """Return the interpreter itself, not a virtual environment's link to it."""
    given = getattr(sys, "_base_executable", "") or sys.executable
    return os.path.realpath(given)


def bare(*arguments: str) -> list[str]:
    """Return the command that starts the guest in this file system."""
    return _command(python(), str(GUEST.parent), arguments)


def zygote(control: int, *, jailed: bool, scratch: int, library: Path | None) -> list[str]:
    """Return the command that starts a zygote, which reads orders from a descriptor."""
    arguments = ("serve", str(control), SCRATCH if scratch else "")
    if jailed:
        inside = _LOOP if library else ""
        return bubblewrap(*arguments, inside, scratch=scratch, library=library)
    return bare(*arguments, str(library or ""))


@functools.cache
def find_loop() -> Path | None:
    """Return the compiled loop of a zygote; None where fugu was built without it."""
    spec = importlib.util.find_spec("fugu._native")
    folders = [Path(__file__).parent]
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "sandbox")  # apart when fugu is being edited
    paths = (folder / "supervise.so" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def bubblewrap(*arguments: str, scratch: int = 0, library: Path | None = None) -> list[str]:
    """Return the command that starts the guest in namespaces of its own, with few files."""
    binary = _find("bubblewrap", "bwrap", "Install the system's package bubblewrap")
    command = [binary, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--hostname", "sandbox", "--dev-bind", "/dev/null", "/dev/null"]
    for path in _SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            command += ["--ro-bind", path, path]
    if not python().startswith("/usr/"):
        prefix = os.path.realpath(sys.base_prefix)
        command += ["--ro-bind", prefix, prefix]
    command += ["--ro-bind", str(GUEST), f"{INSIDE}/guest"]
    if library:
        command += ["--ro-bind", str(library), _LOOP]
    if scratch:
        command += ["--size", str(scratch), "--tmpfs", SCRATCH]
    command += ["--remount-ro", "/", "--chdir", "/", "--"]
    return command + _command(python(), INSIDE, arguments)


def gvisor(root: Path, *arguments: str) -> list[str]:
    """Return the command that starts the guest on gVisor's kernel, with the file system `root`."""
    binary = _find("gvisor", "runsc", "Install gVisor")
    options = ["--rootless", "--network=none", "--platform=ptrace", "--ignore-cgroups"]
    inside = _command(python(), INSIDE, arguments)
    return [binary, *options, "do", f"--root={root}", "--cwd=/", *inside]


def docker(image: str, memory: int, *arguments: str) -> list[str]:
    """Return the command that starts the guest in a container of `image`, which must be there."""
    binary = _find("docker", "docker", "Install Docker and start its engine")
    options = ["--rm", "--interactive", "--pull=never", "--network=none", "--read-only"]
    options += ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--pids-limit=64"]
    options += [f"--memory={memory + (256 << 20)}", "--user=65534:65534"]
    options += [f"--volume={GUEST}:{INSIDE}/guest:ro"]
    options += [f"--env={name}={value}" for name, value in ENVIRONMENT.items()]
    return [binary, "run", *options, image, *_command("python3", INSIDE, arguments)]


def small_root(folder: Path) -> Path:
    """Return a file system with the interpreter, its library, what they link to, and the guest."""
    library = Path(os.__file__).parent
    unwanted = shutil.ignore_patterns(
        "site-packages", "dist-packages", "test", "idlelib", "ensurepip", "__pycache__", "config-*"
    )
    shutil.copytree(library, _within(folder, library), ignore=unwanted, dirs_exist_ok=True)
    shutil.copytree(GUEST, folder / INSIDE.lstrip("/") / "guest", dirs_exist_ok=True)
    modules = (library / "lib-dynload").glob("*.so")
    for file in {Path(python()), *_linked(Path(python()), *modules)}:
        target = _within(folder, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    return folder


def engine_answers() -> bool:
    """Return whether a Docker engine answers the command."""
    binary = shutil.which("docker")
    if binary is None:
        return False
    try:
        done = subprocess.run(
            [binary, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _find(backend: str, command: str, advice: str) -> str:
    """Return the path of a command; SandboxError if there is none."""
    binary = shutil.which(command)
    if binary is None:
        raise SandboxError(
            f"{backend}: given no command {command}; allowed: one on the PATH. "
            f"{advice}, or choose the backend zygote."
        )
    return binary


def _command(interpreter: str, root: str, arguments: tuple[str, ...]) -> list[str]:
    return [interpreter, *_FLAGS, "-c", _BEGIN, root, *arguments]


def _within(folder: Path, path: Path) -> Path:
    return folder / str(path).lstrip("/")


def _linked(*binaries: Path) -> set[Path]:
    """Return the shared libraries that binaries load, by the paths at which they are looked up."""
    done = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, timeout=60, check=False
    )
    words = (word for line in done.stdout.splitlines() for word in line.split())
    return {Path(word) for word in words if word.startswith("/") and not word.endswith(":")}
