"""Workers on a Ray cluster: the same bytes as anywhere, and whatever happens to them is mended."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_equivalence import ENVS, play
from vector_toys import Chance, Herd, Naughty, Sleepy, Small, Waiting, Walk

import fugu
from fugu.core.errors import ActionError, UsageError
from fugu.vector import Vector, WorkerError, make

pytest.importorskip("ray")
from ray_nodes import Nodes, nodes

from fugu.vector.backends import ray_cluster
from fugu.vector.backends.ray_worker import RemoteBuffers, WireFormat
from fugu.vector.shared_buffers import FIELDS, SharedBuffers

pytestmark = [
    pytest.mark.slow,  # nodes of a cluster starve beside the other tests
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes and looks into /proc"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Three nodes with seats for four workers each."""
    with nodes(3, 4) as made:
        yield made


def pids(vec: Vector) -> list[int]:
    return [member.facts.pid for member in vec._backend._members]  # type: ignore[attr-defined]


def nodes_of(vec: Vector) -> set[str]:
    return {member.facts.node for member in vec._backend._members}  # type: ignore[attr-defined]


def wait_until(condition: Any, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


# ---------------------------------------------------------------------- the wire format


@pytest.mark.parametrize("env", [Small, Walk, Herd])
@pytest.mark.parametrize("ids", [[3, 4, 5, 6], [4], [3, 6], []])
def test_blocks_carry_every_row(env: Any, ids: list[int]) -> None:
    """But `final` only of episodes that ended, and of nobody else anything."""
    with make(env, 1, backend="serial") as one:
        groups = one.groups
    rng, remote = np.random.default_rng(1), RemoteBuffers(groups, 3, 4, 64)
    buffers = SharedBuffers(groups, 8, 64)
    for rows in remote.rows:
        for name in FIELDS:
            array = getattr(rows, name)
            raw = array.reshape(-1).view(np.uint8)
            raw[:] = rng.integers(0, 2 if array.dtype == bool else 255, len(raw))
    remote.rows[0].terminations[:], remote.rows[0].truncations[:] = False, False
    for rows in remote.rows[1:]:
        rows.terminations[:], rows.truncations[:] = False, False
    for env_id in (3, 6):
        remote.of_env(env_id)[0].truncations[-1] = True
    env_ids = np.array(ids, np.int64)
    block, ended = WireFormat(remote, 3).pack(env_ids)
    assert ended.tolist() == [env_id for env_id in ids if env_id in (3, 6)]
    WireFormat(buffers).unpack(env_ids, ended, block)
    for env_id in range(8):
        for group in range(len(groups)):
            for name in FIELDS:
                found = getattr(buffers.of_env(env_id)[group], name)
                late = name in ("final", "final_state") and env_id not in (3, 6)
                if env_id in ids and not late and name != "actions":
                    sent = getattr(remote.of_env(env_id)[group], name)
                    assert found.tobytes() == sent.tobytes(), (env_id, name)
                else:
                    assert not found.any(), (env_id, name)


def test_a_block_of_all_is_the_remote_memory_itself() -> None:
    with make(Small, 1, backend="serial") as one:
        remote = RemoteBuffers(one.groups, 0, 3, 64)
    whole, _ = WireFormat(remote).pack(np.arange(3))
    assert np.shares_memory(whole, remote.rows[0].observations)
    part, _ = WireFormat(remote).pack(np.arange(2))
    assert not np.shares_memory(part, remote.rows[0].observations)


# ---------------------------------------------------------------------- the contract


@pytest.mark.parametrize("name", ENVS)
def test_rows_equal_those_of_the_serial_backend(name: str, cluster: Nodes) -> None:
    expected = play(ENVS[name], "serial", 1)
    options = {key: value for key, value in cluster.options.items() if key != "backend"}
    ours = play(ENVS[name], "ray", 4 if name == "single-agent" else 2, **options)
    for step, (a, b) in enumerate(zip(ours, expected, strict=True)):
        assert a == b, step


def test_calls_actions_and_resets_are_those_of_any_vector(cluster: Nodes) -> None:
    length = 5
    with make(lambda: Walk(most=length), 4, num_workers=2, **cluster.options) as vec:
        vec.reset(seed=2)
        assert vec.get_attr("most") == (5,) * 4
        vec.set_attr("note", [1, 2, 3, 4])
        assert vec.get_attr("note") == (1, 2, 3, 4)
        assert vec.call("describe", "hello", mark="!") == ("hello 0!",) * 4
        with pytest.raises(WorkerError, match="no_such_thing"):
            vec.call("no_such_thing")
        first = vec.reset(seed=2)[0].tobytes()
        assert vec.reset(seed=3)[0].tobytes() != first
        assert vec.reset(seed=2)[0].tobytes() == first
    with make(Small, 3, num_workers=1, **cluster.options) as vec:
        vec.reset(seed=0)
        vec.send([1, 7, 1])
        with pytest.raises(ActionError, match="given 7; allowed: an integer from 0 to 4"):
            vec.recv()
        vec.send([2], agent_ids=[1])
        assert vec.recv().rewards.tolist() == [1, 2, 1]
        assert not vec.faults


def test_snapshots_go_on_exactly(cluster: Nodes) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 4, 2)).astype(np.float32)

    def play_on(vec: Vector, steps: slice) -> list[bytes]:
        return [b"".join(a.tobytes() for a in vec.step(row)[:4]) for row in actions[steps]]

    with make(Chance, 4, backend="serial", resumable=True) as vec:
        vec.reset(seed=5)
        expected = play_on(vec, slice(0, 40))
    with make(Chance, 4, num_workers=2, resumable=True, **cluster.options) as vec:
        vec.reset(seed=5)
        assert play_on(vec, slice(0, 20)) == expected[:20]
        snapshot = vec.snapshot()
    with make(Chance, 4, num_workers=1, resumable=True, **cluster.options) as vec:
        vec.restore(snapshot, np.arange(4))
        assert play_on(vec, slice(20, 40)) == expected[20:]


# ---------------------------------------------------------------------- the first that finish


def test_the_first_that_are_ready_come_first(cluster: Nodes) -> None:
    """Environment 0 sleeps; its siblings at other workers come by meanwhile."""
    with make(Sleepy, 4, num_workers=4, batch_size=2, **cluster.options) as vec:
        vec.async_reset(seed=[1, 2, 3, 4])
        held = [vec.recv(), vec.recv()]
        for batch in held:
            vec.send(np.where(batch.env_ids == 0, 4, 0), batch.agent_ids)
        assert vec.under_way == 4
        order: list[int] = []
        while 0 not in order:
            batch = vec.recv()
            order += batch.env_ids.tolist()
            vec.send(np.zeros(2, int), batch.agent_ids)
        assert len(order) >= 4, order  # at the earliest after all others


def test_a_worker_gives_what_is_done_and_goes_on_by_itself(cluster: Nodes) -> None:
    """Six steps of 40 ms at one worker come one by one, also while nobody looks."""
    with make(Sleepy, 6, num_workers=1, batch_size=1, **cluster.options) as vec:
        vec.async_reset(seed=0)
        for _ in range(2):  # the first time the worker learns how long they take
            ids = np.concatenate([vec.recv().env_ids for _ in range(6)])
            vec.send(np.full(6, 4), ids)
        first = vec.recv()
        assert vec.under_way == 5
        assert wait_until(lambda: vec.ready == 5)
        assert first.rewards.tolist() == [4.0]


def test_a_batch_does_not_wait_for_those_that_wait(cluster: Nodes) -> None:
    options = {"num_workers": 1, "batch_size": 3, "step_timeout": 7200.0, **cluster.options}
    with make(lambda: Waiting(3600.0), 4, **options) as vec:
        vec.async_reset(0)
        for _ in range(2):
            batch = vec.recv()
            vec.send((batch.env_ids == 1).astype(int), batch.env_ids)
        for _ in range(5):
            batch = vec.recv()
            assert batch.env_ids.tolist() == [0, 2, 3]
            vec.send(np.zeros(3, int), batch.env_ids)


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("deed", "kind", "words"),
    [
        ("raise", "raised", "a deed of its own"),
        ("hard-exit", "lost", "ActorDiedError"),
        ("stall", "stalled", "in misbehave"),
    ],
)
def test_a_fault_is_noticed_told_and_mended(
    deed: str, kind: str, words: str, cluster: Nodes
) -> None:
    factory = functools.partial(Naughty, deed)
    with make(factory, 4, num_workers=2, step_timeout=3.0, **cluster.options) as vec:
        vec.keep_attr("render_mode", "human")
        vec.reset(seed=3)
        vec.step([0, 0, 0, 0])
        vec.send([0, 4, 0, 0])
        batch = vec.recv()
        (fault,) = vec.faults
        assert fault.kind == kind
        assert words in fault.detail
        assert 1 in fault.envs
        assert fault.seed is not None
        assert not batch.valid[1]
        assert batch.valid[2:].all()  # the other worker is not disturbed
        assert batch.observations[2:, 0].tolist() == [2, 2]
        assert batch.observations[1, 0] == 0
        assert batch.live.all()
        assert vec.get_attr("render_mode") == ("human",) * 4
        vec.step([0, 0, 0, 0])
        vec.send([0, 0, 0, 0])
        assert vec.recv().valid.all()


def test_past_the_budget_there_is_one_error_and_nobody_is_left(cluster: Nodes) -> None:
    vec = make(
        functools.partial(Naughty, "kill"), 2, num_workers=2, max_restarts=1, **cluster.options
    )
    vec.reset(seed=0)
    before = pids(vec)
    with pytest.raises(WorkerError, match="more than 1 restarts") as caught:  # noqa: PT012
        for _ in range(10):
            vec.step([0, 4])
    assert caught.value.fault is not None
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before))


def test_closing_ends_the_actors_and_their_environments(cluster: Nodes, tmp_path: Path) -> None:
    class Tidy(Small):
        def close(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    vec = make(Tidy, 4, num_workers=2, **cluster.options)
    vec.reset(seed=0)
    workers = pids(vec)
    vec.send([0, 0, 0, 0])
    vec.close()
    vec.close()
    assert {int(path.name) for path in tmp_path.iterdir()} >= set(workers)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_a_lost_node_is_survived(cluster: Nodes) -> None:
    """Its environments begin anew on another; rows of the others go on."""
    cluster.add()
    with make(Small, 16, num_workers=8, **cluster.options) as vec:
        vec.reset(seed=1)
        for _ in range(5):
            vec.step(np.zeros(16, int))
        before = nodes_of(vec)
        assert len(before) == 4
        report = vec.cluster()
        assert report is not None
        assert {node.name for node in report.nodes} == before
        assert sum(node.workers for node in report.nodes) == 8
        assert all(node.steps_per_second > 0 for node in report.nodes)
        cluster.kill()
        broken = np.zeros(16, int)
        for _ in range(40):
            vec.send(np.zeros(16, int))
            batch = vec.recv()
            broken += ~batch.valid
            assert batch.live.all()
        lost = sorted({env for fault in vec.faults for env in fault.envs})
        assert {fault.kind for fault in vec.faults} == {"lost"}
        assert 0 < len(lost) < 16
        assert np.flatnonzero(broken).tolist() == lost
        assert broken.max() == 1
        whole = np.flatnonzero(broken == 0)
        assert (vec._buffers.rows[0].observations[whole, 0] == 45).all()
        assert len(nodes_of(vec)) == 3
        assert nodes_of(vec) < before


def test_training_tells_what_each_node_does(cluster: Nodes, tmp_path: Path) -> None:
    result = fugu.train(
        "CartPole-v1",
        vec={"num_envs": 12, "num_workers": 3, "batch_size": 8, **cluster.options},
        train={"total_steps": 3_000, "horizon": 32},
        run={"folder": str(tmp_path)},
        show=False,
    )
    assert result.run is not None
    lines = [json.loads(line) for line in result.run.metrics_path.read_text().splitlines()]
    names = {name for line in lines for name in line if name.startswith("nodes/")}
    assert len({name.split("/")[1] for name in names}) == 3
    assert {name.split("/")[2] for name in names} == {"workers", "steps_per_second", "busy"}


# ---------------------------------------------------------------------- what cannot be


def test_a_factory_that_cannot_be_sent_is_refused(cluster: Nodes) -> None:
    lock = threading.Lock()

    def factory() -> Any:
        with lock:
            return Small()

    with pytest.raises(UsageError, match="cannot be sent to other machines"):
        make(factory, 2, num_workers=1, **cluster.options)


def test_a_module_that_nodes_do_not_have_is_named(
    cluster: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("from vector_toys import Small\nclass Here(Small): ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkerError, match=r"No module named 'only_here'[\s\S]*every node"):
        make("only_here:Here", 2, num_workers=1, **cluster.options)


def test_what_no_node_has_is_told_in_time(cluster: Nodes) -> None:
    options = {**cluster.options, "ray_resources": {"moon": 1}, "ray_timeout": 1.0}
    with pytest.raises(UsageError, match=r"no place on the cluster within 1 s[\s\S]*moon"):
        make(Small, 2, num_workers=2, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ray_address": "ray://there:1"}, "ray_address: given 'ray://there:1'; allowed: auto"),
        ({"ray_address": ""}, "ray_address: given ''"),
        ({"ray_cpus": -1.0}, "ray_cpus: given"),
        ({"ray_resources": {"CPU": 2}}, "CPUs are ray_cpus"),
        ({"ray_timeout": 0}, "ray_timeout: given 0"),
        ({"num_workers": "auto"}, "backend: given 'ray'"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(Small, 2, backend="ray", **options)


def test_a_port_where_nobody_answers_as_ray_does_is_told_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = f"127.0.0.1:{mute.getsockname()[1]}"
        refused = pytest.raises(UsageError, match="no Ray cluster answers within 0.3 s")
        with refused:
            ray_cluster.check_answer(place)
    with refused:  # nor where nobody listens any more
        ray_cluster.check_answer(place)


SINGLE_PROCESS = """
    import os, signal, sys
    import numpy as np
    import fugu
    from fugu.core.errors import UsageError
    def refusal(**options):
        try:
            fugu.make("CartPole-v1", 2, backend="ray", **options)
        except ({error}) as error:
            return str(error)
    {body}
"""


def run_alone(body: str, error: str, folder: Path) -> str:
    """What a script prints that has a Python of its own, and a cluster to find that is no more."""
    script = textwrap.dedent(SINGLE_PROCESS).format(body=body, error=error)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1", "RAY_TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    body = 'sys.modules["ray"] = None\nprint(refusal())'
    assert "fugu-rl[ray]" in run_alone(body, "ImportError", tmp_path)


def test_a_cluster_of_ones_own_ends_with_its_last_vector() -> None:
    """And where there is no cluster to join, that is told before."""
    folder = Path(tempfile.mkdtemp(prefix="r"))  # short, since sockets stand in it
    body = textwrap.dedent("""
        print(refusal())
        before = signal.getsignal(signal.SIGTERM)
        one = fugu.make("CartPole-v1", 4, backend="ray", num_workers=2, ray_address="local")
        two = fugu.make("CartPole-v1", 2, backend="ray", num_workers=2, ray_address="local")
        one.reset(seed=0)
        one.close()
        print(two.reset(seed=0)[0].shape)
        two.close()
        import ray
        print(ray.is_initialized(), signal.getsignal(signal.SIGTERM) is before)
    """)
    try:
        told = run_alone(body, "UsageError", folder).splitlines()
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _mentions(path, folder)]
        assert wait_until(lambda: not any(_mentions(path, folder) for path in left))
    finally:
        shutil.rmtree(folder)
    assert "'127.0.0.1:1', where no Ray cluster answers" in told[0]
    assert "ray start --head" in told[0]
    assert told[1:] == ["(2, 4)", "False True"]


def _mentions(path: Path, folder: Path) -> bool:
    try:
        return str(folder) in path.read_text()
    except OSError:
        return False
