"""`fugu export` and `fugu gallery`: policies and environments as files that need no trainer."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fugu.cli.parsing import RunName, RunOptions
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.export.c_writer import CReport
    from fugu.export.loading import Trained


@dataclass(frozen=True)
class Export(RunOptions):
    """Write a run's policy as ONNX, as plain C, as WebAssembly, or as a web page to watch and play.

    fugu.export.load acts with what --to onnx, c and wasm write.
    """

    name: RunName
    """The run: its name, the beginning of it, its folder, or latest; or a checkpoint's folder."""
    to: Literal["onnx", "c", "web", "wasm"] = "onnx"
    """onnx: for onnxruntime in any language; c: two files without any library; wasm: a module that
    imports nothing; web: a page with the environment, which must be a native one."""
    out: Path | None = None
    """The file (onnx, wasm) or the folder (c, web) to write; named after the run if not given."""
    int8: bool = False
    """Keep weights as int8 (c, wasm, web) and say what that changes."""
    group: str | None = None
    """Which agents' policy, if the run has several; a page takes all."""

    def run(self) -> int:
        """Write it; 0 if there is something."""
        from fugu.export.loading import find

        if self.int8 and self.to == "onnx":
            raise UsageError("int8: given with onnx; allowed: with c, wasm and web.")
        self._check_out()
        if self.to == "web":
            self._web()
            return 0
        trained = find(
            self.name, group=self.group, best=self.best, root=self.runs, trust=self.trust
        )
        {"onnx": self._onnx, "c": self._c, "wasm": self._wasm}[self.to](trained)
        return 0

    def _check_out(self) -> None:
        """Refuse a place that cannot be right, before anything takes its time."""
        if self.out is None:
            return
        suffix = {"onnx": ".onnx", "wasm": ".wasm"}.get(self.to)
        if suffix is not None and (self.out.suffix != suffix or self.out.is_dir()):
            raise UsageError(f"out: given {str(self.out)!r}; allowed: FILE{suffix}")
        if suffix is None and self.out.exists() and not self.out.is_dir():
            raise UsageError(f"out: given {str(self.out)!r}, a file; allowed: a folder.")

    def _place(self, trained: Trained, suffix: str) -> Path:
        if self.out is not None:
            return self.out
        group = f"-{trained.group.name}" if len(trained.everyone) > 1 else ""
        return Path(f"{trained.run.name}{group}{suffix}")

    def _onnx(self, trained: Trained) -> None:
        from fugu.export.onnx_writer import write_onnx

        path, env, group = self._place(trained, ".onnx"), trained.cfg.env, trained.group.name
        written = write_onnx(trained.net(), path, env=env, group=group)
        for each in written:
            print(f"wrote {each}: {each.stat().st_size / 1e3:,.0f} kB")
        print(f'next: fugu.export.load("{path}"), or any onnxruntime')

    def _c(self, trained: Trained) -> None:
        from fugu.export.c_writer import write_c
        from fugu.export.loading import observe

        folder = self._place(trained, "-c")
        seen = observe(trained) if self.int8 else None
        print(f"wrote {write_c(trained.net(), folder, int8=self.int8, observations=seen)}")
        print(f"next: cc -O3 -c {folder / 'policy.c'}")

    def _wasm(self, trained: Trained) -> None:
        from fugu.export.loading import observe
        from fugu.export.wasm_engine import write_wasm

        path = self._place(trained, ".wasm")
        seen = observe(trained) if self.int8 else None
        report = write_wasm(trained.net(), path, int8=self.int8, observations=seen)
        print(f"wrote {path}: {path.stat().st_size / 1e3:,.0f} kB")
        _print_loss(report)
        print(f'next: fugu.export.load("{path}")')

    def _web(self) -> None:
        from fugu.export.c_writer import write_c
        from fugu.export.loading import find_all, observe
        from fugu.web import write_page

        found = find_all(self.name, best=self.best, root=self.runs, trust=self.trust)
        names = [trained.group.name for trained in found]
        if self.group is not None and self.group not in names:
            raise UsageError(f"group: given {self.group!r}; allowed: {', '.join(names)}.")
        chosen = [each for each in found if self.group in (None, each.group.name)]
        run, cfg = found[0].run, found[0].cfg
        out = Path(f"{run.name}-web") if self.out is None else self.out
        with tempfile.TemporaryDirectory() as folder:
            policies = {}
            for trained in chosen:
                seen = observe(trained) if self.int8 else None
                place = Path(folder) / str(names.index(trained.group.name))
                report = write_c(trained.net(), place, int8=self.int8, observations=seen)
                policies[trained.group.name] = (report.header, report.source)
                _print_loss(report)
            page = write_page(out, cfg.env, policies, env_kwargs=cfg.env_kwargs, note=run.name)
        modules = sum(page.module_bytes.values())
        size = page.path.stat().st_size
        print(f"wrote {page.path}: {size / 1e3:,.0f} kB, {modules / 1e3:,.0f} kB of WebAssembly")
        print(f"next: open {page.path.resolve().as_uri()}")


@dataclass(frozen=True)
class Gallery:
    """Write a web page on which every environment of the suite can be played.

    The page is one file that needs nothing else: open it from the disk, or put it on any host.
    """

    env: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="ENV")] = ()
    """Only these: native environments or paths of built ones; may be given several times."""
    out: Path = Path("gallery")
    """The folder of the page."""

    def run(self) -> int:
        """Write the page and return the exit status."""
        from fugu.web import write_gallery

        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"out: given {str(self.out)!r}, a file; allowed: a folder.")
        page = write_gallery(self.out, self.env or None)
        size = page.path.stat().st_size
        count = len(page.module_bytes)
        print(f"wrote {page.path}: {count} environments, {size / 1e3:,.0f} kB")
        print(f"next: open {page.path.resolve().as_uri()}")
        return 0


def _print_loss(report: CReport) -> None:
    """Print what int8 changes."""
    if report.loss is not None:
        print(report.loss_text)
