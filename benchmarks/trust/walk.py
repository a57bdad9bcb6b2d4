"""The walk of experience from an environment's step to the gradient: the functions that it crosses.

    python benchmarks/trust/walk.py [--list] [--env breakout] [--json FILE]

One update of PPO is traced after a first one that warms up: from the collector to the first step of
the optimizer, by the native learner and by torch. A function of `src/fugu` counts once, however
often it is called, if experience is in its hands: an array or tensor among its arguments, its
locals or what it returns, alone or inside a tuple, a list, a dict or an object of fugu's other than
`self`. What only counts, schedules, reads settings or passes calls on holds none. An array is not
experience if it

- has fewer elements than there are agents (a number, a shape);
- is a weight, a gradient or a buffer of the policy, or state of the optimizer;
- is of float64 (statistics), or has one axis of int64 (indices: where experience is);
- is of episodes that ended, which are only reported (`REPORTS`).

Comprehensions and lambdas belong to the function that holds them. --list names the functions in the
order of their first return. In the code of 19986e9, where a count by hand found 41 functions
(native, without the last step of a segment, which went back to Python) and 78 (torch), this
definition finds 57 and 64.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

import fugu
from fugu.core.seeding import derive
from fugu.training.config import resolve_config
from fugu.training.trainer import Trainer

SOURCE = Path(fugu.__file__).parent
TARGETS = {"native": 25, "torch": 45}  # functions, at most
REPORTS = ("EpisodeInfos.", "EpisodeStatistics.", ".infos")
DEPTH = 2  # of containers and objects that are looked into
console = Console()


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    env: str = "breakout"
    """Environment to train on."""
    list: bool = False
    """Name the functions, in the order of their first return."""
    json: Path | None = None
    """Write the counts to this file."""


class GradientReachedError(Exception):
    """The optimizer is about to take its first step."""


@dataclass
class Walk:
    """Notes the functions of `src/fugu` that have experience in their hands.

    Attributes:
        agents: Fewest elements of experience.
        weights: Where the policy's numbers stand, each from one address to another.
        found: The functions, in the order of their first return.
    """

    agents: int
    weights: list[tuple[int, int]]
    found: dict[str, None] = field(default_factory=dict)

    def is_experience(self, value: Any, depth: int = DEPTH) -> bool:
        """Return whether a value is experience, or holds some."""
        if isinstance(value, torch.Tensor):
            if isinstance(value, torch.nn.Parameter) or value.device.type != "cpu":
                return not isinstance(value, torch.nn.Parameter)
            value = value.detach()
            value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        if isinstance(value, np.ndarray):
            indices = value.dtype == np.int64 and value.ndim == 1
            if value.size < self.agents or indices or value.dtype == np.float64:
                return False
            place = value.__array_interface__["data"][0]
            return not any(begin <= place < end for begin, end in self.weights)
        if depth == 0:
            return False
        if isinstance(value, tuple | list):
            return any(self.is_experience(each, depth - 1) for each in value)
        if isinstance(value, dict):
            return any(self.is_experience(each, depth - 1) for each in value.values())
        ours = type(value).__module__.startswith("fugu.") and hasattr(value, "__dict__")
        if ours and not isinstance(value, torch.nn.Module | torch.optim.Optimizer | type):
            return any(self.is_experience(each, depth - 1) for each in vars(value).values())
        return False

    def __call__(self, frame: FrameType, event: str, returned: Any) -> None:
        """Look at a function that returns; `sys.setprofile` calls this."""
        code = frame.f_code
        if event != "return" or not code.co_filename.startswith(str(SOURCE)):
            return
        name = f"{Path(code.co_filename).relative_to(SOURCE)}:{code.co_qualname}"
        if name in self.found or code.co_name[0] == "<" or any(word in name for word in REPORTS):
            return
        local = [value for key, value in frame.f_locals.items() if key != "self"]
        if self.is_experience(returned) or any(map(self.is_experience, local)):
            self.found[name] = None


def walk(env: str, engine: str) -> list[str]:
    """Return the functions that experience crosses in one update."""
    trainer = Trainer(resolve_config(env, overrides={"train": {"engine": engine}}))
    algorithm: Any = trainer.algorithm

    def stop(*_: Any) -> None:
        raise GradientReachedError

    try:
        algorithm.start(derive(trainer.cfg.seed, 0))
        trainer.update()
        numbers = [*algorithm.policies[0].parameters(), *algorithm.policies[0].buffers()]
        numbers += [number.grad for number in numbers if number.grad is not None]
        spans = [(n.data_ptr(), n.data_ptr() + n.numel() * n.element_size()) for n in numbers]
        found = Walk(trainer.vec.num_agents, spans)
        for group in algorithm.groups:
            group.actor.forward.refresh()
            group.learner.optimizer.step = stop
        sys.setprofile(found)
        try:
            algorithm.collector.collect()
            algorithm.update(0.1)
        except GradientReachedError:
            return list(found.found)
        finally:
            sys.setprofile(None)
        raise SystemExit("the optimizer took no step")
    finally:
        trainer.close()


def main(options: Options) -> None:
    """Trace both learners, and show how many functions and files there are."""
    table = Table("learner", "functions", "files", "asked")
    facts = {}
    for engine, most in TARGETS.items():
        found = walk(options.env, engine)
        files = {name.partition(":")[0] for name in found}
        table.add_row(engine, str(len(found)), str(len(files)), f"at most {most}")
        facts[engine] = {"functions": found, "files": sorted(files)}
        if options.list:
            console.print(f"[bold]{engine}[/]", *found, sep="\n  ")
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
