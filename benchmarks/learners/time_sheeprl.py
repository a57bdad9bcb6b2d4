"""SheepRL's DreamerV3 of the Nature paper, timed: its 1M size on CartPole's numbers.

One gradient step of 16 sequences of 64 for each step of the environments, four copies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import sheeprl.algos.dreamer_v3_5.dreamer_v3_5 as dreamer
import torch
from sheeprl.cli import run
from watching import Watch, read_settings

ARGUMENTS = (
    "exp=dreamer_v3_5",
    "algo=dreamer_v3_5_1M",
    "env=gym",
    "env.id=CartPole-v1",
    "env.num_envs=4",
    "env.sync_env=True",
    "env.capture_video=False",
    "algo.cnn_keys.encoder=[]",
    "algo.mlp_keys.encoder=[vector]",
    "algo.replay_ratio=1",
    "algo.total_steps=1000000",
    "buffer.size=200000",
    "buffer.memmap=False",
    "buffer.checkpoint=False",
    "checkpoint.every=1000000000",
    "metric.log_level=0",
    "fabric.accelerator=cpu",
    f"num_threads={torch.get_num_threads()}",
)


def main() -> None:
    """Train until the watch has seen enough."""
    watch = Watch({"goal": "rate", "seconds": read_settings()["seconds"]})
    train, count = dreamer.train, 0

    def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if watch.done(count - 1):  # of those before
            modules = [part for part in arguments if isinstance(part, torch.nn.Module)]
            watch.answer(parameters=sum(p.numel() for m in modules for p in m.parameters()))
        return train(*arguments, **options)

    dreamer.train = watched
    sys.argv = [sys.argv[0], *ARGUMENTS]
    run()


if __name__ == "__main__":
    main()
