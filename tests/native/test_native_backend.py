"""The native backend: threads, batches, stalls, states, libraries that are something else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native_helpers import TOYS

from fugu.core.errors import ActionError, UsageError
from fugu.envs import suite
from fugu.envs.building import BuildError, build
from fugu.envs.contract import Buffers
from fugu.envs.native_env import NativeEnv, start_pool
from fugu.envs.scaffold import write_scaffold
from fugu.vector import WorkerError, make, to_gymnasium

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(TOYS / "uneven.h", tmp_path_factory.mktemp("toys") / "uneven.so"))


def test_the_first_that_are_ready_come_first(uneven: str) -> None:
    options = {"batch_size": 3, "num_workers": 2}
    with make(uneven, 4, env_kwargs={"work": 200_000_000}, step_timeout=60, **options) as vec:
        vec.async_reset(seed=0)
        first = vec.recv()
        slow = int(first.env_ids[0])
        vec.send(np.array([1, 0, 0]), first.agent_ids)
        seen: list[int] = []
        for _ in range(20):  # those that do nothing come by again and again
            batch = vec.recv()
            seen += batch.env_ids.tolist()
            vec.send(np.zeros(len(batch.env_ids), np.int64), batch.agent_ids)
        assert slow not in seen[:30]
        assert seen.count(next(iter(set(seen) - {slow}))) > 5


def test_a_thread_that_stalls_is_an_error_that_says_so(uneven: str) -> None:
    script = f"""
        import numpy as np, fugu
        from fugu.vector import WorkerError
        vec = fugu.make({uneven!r}, 4, batch_size=2, step_timeout=0.5)
        vec.async_reset(seed=0)
        batch = vec.recv()
        vec.send(np.array([2, 2]), batch.agent_ids)
        vec.recv()
        try:
            vec.send(np.array([2, 2]))
            vec.recv()
        except WorkerError as error:
            assert "stalled in the native environment 'uneven'" in str(error), error
            print("told", flush=True)
            import os
            os._exit(0)
    """
    done = run(script)
    assert (done.returncode, done.stdout.strip()) == (0, "told"), done.stderr


def test_a_caller_that_stalls_ends_with_a_word(uneven: str) -> None:
    script = f"""
        import numpy as np, fugu
        vec = fugu.make({uneven!r}, 2, step_timeout=0.5)
        vec.reset(seed=0)
        vec.step(np.array([2, 2]))
    """
    done = run(script)
    assert done.returncode == 70
    assert "'uneven' did not end a step within step_timeout=0.5 s" in done.stderr


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_no_thread_is_left_behind() -> None:
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        vec = make("cartpole", 64, num_workers=3, batch_size=32)
        vec.async_reset(seed=0)
        vec.recv()
        assert len(os.listdir("/proc/self/task")) > before
        vec.close()
        vec.close()
    del vec
    make("cartpole", 4, num_workers=2).reset(seed=0)  # closed by the collector
    assert len(os.listdir("/proc/self/task")) == before


def test_the_same_actions_give_the_same_bytes_in_a_process() -> None:
    found = []
    actions = np.random.default_rng(0).integers(0, 2, (40, 6))
    for backend in ("native", "process"):
        with make("cartpole", 6, backend=backend, num_workers=2) as vec:
            vec.reset(seed=1)
            steps = [[np.copy(part) for part in vec.step(a)[:4]] for a in actions]
            found.append((steps, vec.state()))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert np.array_equal(found[0][1], found[1][1])


def test_states_of_something_else_are_refused() -> None:
    with make("cartpole", 2) as vec, make("cartpole", 2, env_kwargs={"gravity": 5}) as other:
        vec.reset(seed=0)
        other.reset(seed=0)
        with pytest.raises(UsageError, match=r"given \(3, 96\) bytes for 2|given .*3"):
            vec.set_state(np.zeros((3, vec.state().shape[1]), np.uint8))
        with pytest.raises(UsageError, match="given rows of 7 bytes"):
            vec.set_state(np.zeros((2, 7), np.uint8))
        with pytest.raises(UsageError, match="setting of gravity"):
            vec.set_state(other.state())
        vec.send([0, 1])
        with pytest.raises(UsageError, match="2 environments are not received"):
            vec.state()


def test_calls_reach_copies_and_options_are_refused() -> None:
    with make("cartpole", 3, env_kwargs={"gravity": 3}) as vec:
        with pytest.raises(UsageError, match="given options"):
            vec.reset(seed=0, options={"low": 1})
        vec.reset(seed=0)
        assert [len(state) for state in vec.call("state")] == [vec.state().shape[1]] * 3
        with pytest.raises(WorkerError, match="has no attribute 'nothing'"):
            vec.get_attr("nothing")
        vec.step([0, 1, 0])


def test_a_reset_without_a_seed_goes_on_and_a_bad_action_steps_nobody() -> None:
    with make("cartpole", 2, seed=4) as vec:
        first, _ = vec.reset()
        kept = first.copy()
        second, _ = vec.reset()
        assert not np.array_equal(kept, second)
        state = vec.state()
        with pytest.raises(ActionError, match="given 2"):
            vec.step([0, 2])
        assert np.array_equal(vec.state(), state)


def test_one_environment_by_hand_refuses_what_is_out_of_order() -> None:
    env = NativeEnv(make_path())
    with pytest.raises(UsageError, match="not bound"):
        env.reset(0)


def make_path() -> str:
    from fugu.envs import suite

    found = suite.find("cartpole")
    assert found
    return found


def test_libraries_are_loaded_by_path_alone_and_checked(tmp_path: Path, uneven: str) -> None:
    shutil.copy(uneven, tmp_path / "uneven.so")
    done = subprocess.run(
        [sys.executable, "-c", "import fugu; fugu.make('uneven', 2)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert "given 'uneven', which is not registered" in done.stderr
    with pytest.raises(UsageError, match="a library that exists"):
        make(str(tmp_path / "nothing.so"), 2)
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(UsageError, match=r"text\.so'?, but it cannot be loaded"):
        make(str(tmp_path / "text.so"), 2)
    compile_c("int other(void) { return 1; }", tmp_path / "other.so")
    with pytest.raises(UsageError, match="it has no function fugu_environment"):
        make(str(tmp_path / "other.so"), 2)
    old = "static const unsigned old[8] = {99}; const void* fugu_environment(void) { return old; }"
    compile_c(old, tmp_path / "old.so")
    with pytest.raises(UsageError, match="built for version 99 of the interface, and this is"):
        make(str(tmp_path / "old.so"), 2)
    with pytest.raises(UsageError, match="backend: given 'native' for 'CartPole-v1'"):
        make("CartPole-v1", 2, backend="native")


def compile_c(code: str, out: Path) -> None:
    out.with_suffix(".c").write_text(code)
    command = ["cc", "-shared", "-fPIC", str(out.with_suffix(".c")), "-o", str(out)]
    subprocess.run(command, check=True)


def test_a_scaffold_builds_and_its_own_tests_pass(tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    header, _, test = write_scaffold("my_env", tmp_path)
    with pytest.raises(UsageError, match="has my_env.h"):
        write_scaffold("my_env", tmp_path)
    with pytest.raises(UsageError, match="allowed: lower-case letters"):
        write_scaffold("My Env", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=100,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.parent.name for path in made} - {"__pycache__"} == {header.parent.name}


def test_code_that_does_not_compile_is_shown_and_the_old_library_stays(tmp_path: Path) -> None:
    header, *_ = write_scaffold("broken", tmp_path)
    library = build(header)
    kept = library.read_bytes()
    header.write_text(header.read_text().replace("env->goal =", "env->gaol ="))
    with pytest.raises(BuildError, match=r"broken\.h.*gaol"):
        build(header)
    assert library.read_bytes() == kept
    with pytest.raises(UsageError, match="a header that exists"):
        build(tmp_path / "nothing.h")


def test_zig_compiles_where_there_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ziglang")
    header, *_ = write_scaffold("zigged", tmp_path)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    library = build(header)
    with make(str(library), 3) as vec:
        observations, _ = vec.reset(seed=1)
        assert observations[:, 0].tolist() == [0, 0, 0]


def test_other_libraries_take_native_vectors() -> None:
    envs = to_gymnasium(make("cartpole", 4))
    envs.reset(seed=1)
    ended = False
    for _ in range(60):
        *_, terminations, truncations, infos = envs.step(np.ones(4, int))
        if terminations.any() or truncations.any():
            ended = True
            assert "final_obs" in infos
    assert ended
    envs.close()


@pytest.fixture
def levels(tmp_path: Path) -> NativeEnv:
    env = NativeEnv(str(build(TOYS / "levels.h", tmp_path / "levels.so")))
    env.bind(*(Buffers.allocate(group) for group in env.groups))
    env.reset(seed=0)
    return env


def test_actions_of_bytes_are_checked_as_bytes(levels: NativeEnv) -> None:
    rows = levels.buffers[0]
    rows.actions[:] = [[5, 0, 3]]
    levels.step()
    assert rows.observations[0, 0] == 8
    rows.actions[:] = [[0, 6, 0]]
    with pytest.raises(ActionError, match="6"):
        levels.step()
    assert rows.observations[0, 0] == 8


def test_steps_are_counted_no_further_than_they_can_be(levels: NativeEnv) -> None:
    state, most = bytearray(levels.state()), 2**31 - 1
    step = slice(24, 28)  # of FuguEnv, behind its three numbers of chance
    assert state[step] == bytes(4)
    state[step] = (most - 1).to_bytes(4, "little")
    levels.set_state(bytes(state))
    for _ in range(3):
        levels.step()
    assert int.from_bytes(levels.state()[step], "little") == most


def test_masks_of_another_width_are_refused() -> None:
    env = NativeEnv(str(suite.find("cartpole")))
    (rows,) = (Buffers.allocate(group) for group in env.groups)
    rows = replace(rows, action_masks=rows.action_masks[:, :1].copy())
    with pytest.raises(ValueError, match="width"):
        start_pool(env.library, env.spec, (rows,), 1)
