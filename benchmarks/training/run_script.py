"""A script of examples/cleanrl, timed by the lines that it prints. Settings: name, steps, warm."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import torch
from watching import Watch, read_settings

SCRIPTS = Path(__file__).parents[2] / "examples/cleanrl"
STEPS = re.compile(r"global_step=(\d+)")
THREADS = 2


def main() -> None:
    """Train until the watch has seen enough."""
    settings = read_settings()
    sys.path.insert(0, str(SCRIPTS))
    script: Any = importlib.import_module(settings["name"])
    torch.set_num_threads(THREADS)
    args, watch = script.Args(), Watch(settings)
    told: dict[str, Any] = {
        "copies": args.num_envs,
        "horizon": args.num_steps,
        "epochs": args.update_epochs,
        "minibatch": args.num_envs * args.num_steps // args.num_minibatches,
        "threads": torch.get_num_threads(),
    }

    class Agent(script.Agent):  # type: ignore[misc, name-defined]
        """The script's own, counted."""

        def __init__(self, envs: Any) -> None:
            super().__init__(envs)
            told["parameters"] = sum(p.numel() for p in self.parameters())

    def heard(line: str, **_: Any) -> None:
        found = STEPS.match(line)
        if found and watch.done(int(found[1])):
            watch.answer(**told)

    script.Agent, script.print = Agent, heard
    script.train(args)


if __name__ == "__main__":
    main()
