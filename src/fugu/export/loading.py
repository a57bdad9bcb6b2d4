"""Load policies of runs, checkpoints and exported files, to act with any engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.export.engines import check_engine, file_engine, make_engine, open_engine
from fugu.export.player import LoadedPolicy
from fugu.store.checkpoint import CHECKSUMS
from fugu.store.finding import is_run
from fugu.store.run import Run

if TYPE_CHECKING:
    from fugu.algos.settings import Config
    from fugu.envs.contract import AgentGroup
    from fugu.nets.net import Net
    from fugu.policies.policy import Policy


@dataclass(frozen=True)
class Trained:
    """One policy of a run."""

    run: Run  # The run
    cfg: Config  # Its settings
    env: str | Callable[..., Any]  # The environment: its name, or a callable that makes it
    group: AgentGroup  # The agents that the policy acts for
    policy: Policy  # The policy, in torch
    everyone: list[Policy]  # The policies of all groups, in order

    def net(self) -> Net:
        """Return the policy as a network; raise if it cannot be taken apart."""
        from fugu.nets.reading import read_policy

        return read_policy(self.policy, self.group.observation_layout)


def load(
    path: str | Path | Run,
    engine: str | None = None,
    *,
    group: str | None = None,
    best: bool = False,
    root: str | Path = "runs",
    seed: int = 0,
    env: Callable[..., Any] | None = None,
    policy_factory: Callable[..., Policy] | None = None,
    trust: bool = False,
) -> LoadedPolicy:
    """Load a policy that acts.

    Args:
        path: A run (its name, how it begins, its folder, latest), a checkpoint's folder, or what
            `fugu export` wrote: FILE.onnx, FILE.wasm, a folder of C.
        engine: The inference engine: torch, compile, native, onnx, jax, wasm or c. By default
            torch, and for an exported file the engine that it is for.
        group: The agents' group, if a run has several.
        best: Take a run's best checkpoint and not its last.
        root: The folder of runs.
        seed: Of the policy's own generator.
        env: What the run was trained on, if that was a callable.
        policy_factory: The argument of `train`, if it was given there.
        trust: Trust the run from now on, whoever trained it: its settings may name code to run.

    Raises:
        UsageError: If there is no such policy, or the engine cannot run it.
        MissingExtraError: If the engine needs a package that is not installed.
    """
    if engine is not None:
        check_engine(engine)
    if not isinstance(path, Run) and (kind := file_engine(Path(path))) is not None:
        given = {"group": group, "best": best, "env": env, "policy_factory": policy_factory}
        given["trust"] = trust
        return _open(
            Path(path), kind, engine, [name for name, value in given.items() if value], seed
        )
    name = engine or "torch"
    factories = {"env": env, "policy_factory": policy_factory}
    trained = find(path, group=group, best=best, root=root, trust=trust, **factories)
    made = make_engine(name, trained.policy, trained.group.observation_layout)
    return LoadedPolicy(made, name, seed)


def find(
    path: str | Path | Run,
    *,
    group: str | None = None,
    best: bool = False,
    root: str | Path = "runs",
    env: Callable[..., Any] | None = None,
    policy_factory: Callable[..., Policy] | None = None,
    trust: bool = False,
) -> Trained:
    """Find a policy of a run or a checkpoint, in torch; see `load`."""
    found = find_all(
        path, best=best, root=root, env=env, policy_factory=policy_factory, trust=trust
    )
    by_name = {each.group.name: each for each in found}
    if group is None and len(by_name) > 1:
        raise UsageError(
            f"group: given none, but {found[0].run.name!r} has several; allowed: one of "
            f"{', '.join(by_name)}."
        )
    name = next(iter(by_name)) if group is None else group
    if name not in by_name:
        raise UsageError(f"group: given {name!r}; allowed: {', '.join(by_name)}.")
    return by_name[name]


def find_all(
    path: str | Path | Run,
    *,
    best: bool = False,
    root: str | Path = "runs",
    env: Callable[..., Any] | None = None,
    policy_factory: Callable[..., Policy] | None = None,
    trust: bool = False,
) -> list[Trained]:
    """Find the policies of a run or a checkpoint, one for each group of agents; see `load`."""
    from fugu.policies.policy import make_policy
    from fugu.training.evaluate import load_groups
    from fugu.training.inputs import RunInputs

    run, checkpoint = _places(path, root)
    if best and checkpoint is not None:
        raise UsageError("best: given with a checkpoint; allowed: with a run.")
    if best:
        checkpoint = run.best()
        if checkpoint is None:
            raise UsageError(
                f"best: given with {run.name!r}, whose checkpoints have no score; allowed: a run "
                "in which an episode ended. Leave it out for the last checkpoint."
            )
    inputs = RunInputs(env, policy_factory or make_policy, trust=trust)
    cfg, found = load_groups(run, checkpoint, inputs)
    everyone, made_of = [policy for _, policy in found], inputs.env_of(cfg.env)
    return [Trained(run, cfg, made_of, group, policy, everyone) for group, policy in found]


def observe(trained: Trained, steps: int = 512, copies: int = 8) -> NDArray[Any]:
    """Return what the policy's agents observe while the run's policies play, to fit int8 weights.

    Returns:
        Rows `[steps, agents, size]`.
    """
    from fugu.training.evaluate import Players
    from fugu.vector import make

    cfg, found = trained.cfg, []
    with make(trained.env, copies, backend="serial", **cfg.env_options) as vec:
        place = [group.name for group in vec.groups].index(trained.group.name)
        players = Players(trained.everyone, vec, 0, greedy=False)
        vec.async_reset(0)
        for _ in range(steps):
            batch = vec.recv()
            found.append(batch.groups[place].rows.observations.copy())
            vec.send(players(batch))
    return np.stack(found)


def _places(path: str | Path | Run, root: str | Path) -> tuple[Run, Path | None]:
    """Return the run, and its checkpoint if that was named."""
    if isinstance(path, Run):
        return path, None
    folder = Path(path)
    if not (folder / CHECKSUMS).is_file():
        return Run.open(path, root), None
    above = folder.absolute().parent.parent
    if not is_run(above):
        raise UsageError(
            f"path: given {str(folder)!r}, a checkpoint outside of its run, whose settings it "
            "needs; allowed: RUN/checkpoints/step_000000123."
        )
    return Run(above), folder


def _open(path: Path, kind: str, engine: str | None, given: list[str], seed: int) -> LoadedPolicy:
    if engine not in (None, kind):
        raise UsageError(
            f"engine: given {engine!r} for {str(path)!r}; allowed: {kind!r}, or none. Other "
            "engines load the run."
        )
    if given:
        raise UsageError(
            f"{given[0]}: given with {str(path)!r}, which holds one policy; allowed: with a run."
        )
    if not path.exists():
        raise UsageError(f"path: given {str(path)!r}; allowed: a file that exists.")
    return LoadedPolicy(open_engine(kind, path), kind, seed)
