"""Put the policies of runs into the folder of a zoo, small and with checksums."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fugu.algos.settings import read_config
from fugu.core.errors import UsageError
from fugu.hub.repositories import (
    CHECKSUMS,
    CONFIG,
    RUN,
    dump_checksums,
    sha256_of,
    shared_config,
)
from fugu.store import values
from fugu.store.checkpoint import POLICY_ONLY, load_checkpoint, save_checkpoint
from fugu.store.run import Run
from fugu.training.untrusted import check_settings
from fugu.zoo.index import INDEX, ZooPolicy, files_of, read_index, write_index

MAX_BYTES = 1 << 20  # of all files of a policy


def name_of(env: str) -> str:
    """Return the zoo's name for an environment, which is a valid file name.

    >>> name_of("ALE/Pong-v5"), name_of("classic_control:CartPole-v1"), name_of("breakout")
    ('ALE-Pong-v5', 'classic_control-CartPole-v1', 'breakout')
    """
    return re.sub(r"[^\w.-]+", "-", env, flags=re.ASCII).strip("-.")


def save_policy(run: Run, folder: Path) -> Path:
    """Write the last policy of a run into a new folder, in the Hub's format.

    It holds settings and weights only: no optimizer, experience, metrics or environment states.
    """
    checkpoint = run.latest()
    if checkpoint is None:
        raise UsageError(f"run: {run.name!r} has no checkpoint. Train it first.")
    loaded = load_checkpoint(checkpoint)
    config = shared_config(run.config)
    check_settings(read_config(config), "The zoo has no policies that need trust.")
    step = int(loaded.state["step"])
    weights = {name: group for name, group in loaded.tensors.items() if name.startswith("policy_")}
    folder.mkdir(parents=True)
    kept = {"step": step, "score": loaded.state.get("score"), POLICY_ONLY: True}
    save_checkpoint(Run(folder).checkpoint_path(step), tensors=weights, state=kept, signed=False)
    (folder / CONFIG).write_bytes(values.dump(config))
    (folder / RUN).write_bytes(values.dump({"env": run.env, "created": run.created}))
    (folder / CHECKSUMS).write_bytes(dump_checksums(files_of(folder)))
    return folder


def publish(
    source: Path,
    folder: Path,
    name: str,
    evaluation: Mapping[str, Any],
    *,
    note: str = "",
) -> ZooPolicy:
    """Copy a policy that `save_policy` wrote into a zoo, in place of an older one of that name.

    Args:
        source: The folder that `save_policy` wrote.
        folder: The folder of the zoo; it is created if it does not exist.
        name: The name of the policy in the zoo.
        evaluation: The result of its evaluation, as `Evaluation.to_dict` returns it.
        note: How the policy was chosen.
    """
    files = files_of(source)
    size = sum(path.stat().st_size for path in files.values())
    if size > MAX_BYTES:
        raise UsageError(
            f"policy: expected at most {MAX_BYTES:,} bytes; {name} has {size:,}. Share it with "
            "fugu hub push instead."
        )
    config = Run(source).config
    (checkpoint,) = Run(source).checkpoints()
    policy = ZooPolicy(
        name=name,
        env=str(config["env"]),
        algo=str(config["algo"]),
        steps=int(checkpoint.name.removeprefix("step_")),
        seed=int(config["seed"]),
        score=float(evaluation["mean_return"]),
        deviation=float(evaluation["deviation"]),
        episodes=int(evaluation["episodes"]),
        note=note,
        bytes=size,
        files={file: sha256_of(path) for file, path in sorted(files.items())},
    )
    others = read_index(folder) if (folder / INDEX).is_file() else []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as fresh:
        shutil.copytree(source, Path(fresh) / name)
        shutil.rmtree(folder / name, ignore_errors=True)
        (Path(fresh) / name).rename(folder / name)
    write_index(folder, [other for other in others if other.name != name] + [policy])
    return policy
