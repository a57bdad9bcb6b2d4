"""list_dsl beside its reference: operations, tasks, sides, rewards, observations."""

import numpy as np
import pytest
from program_reference import (
    ALL,
    HELD_OUT,
    OPERATIONS,
    TRAIN,
    ListTask,
    has_held_out_part,
    is_held_out,
    run_list,
)

import fugu
from fugu.core.seeding import derive

OPERATIONS_AT, PROGRAM_AT, HIDDEN_OUTPUT_AT = 52, 72, 270  # bytes of a state


def make(copies=1, name="list_dsl", **settings):
    return fugu.make(name, copies, backend="native", num_workers=1, env_kwargs=settings)


def programs_of(vec):
    state = vec.state()
    counts = state[:, OPERATIONS_AT : OPERATIONS_AT + 4].copy().view(np.int32)[:, 0]
    rows = state[:, PROGRAM_AT : PROGRAM_AT + 3].tolist()
    return [row[:count] for row, count in zip(rows, counts, strict=True)]


@pytest.mark.parametrize(
    ("numbers", "outputs"),
    [
        (
            [3, -4, 3, 60],
            {
                0: [-4, 3, 3, 60],
                1: [60, 3, -4, 3],
                2: [4, -3, 4, 61],
                3: [2, -5, 2, 59],
                4: [6, -8, 6, 64],
                5: [1, -2, 1, 30],
                6: [-3, 4, -3, -60],
                7: [9, 16, 9, 64],
                8: [3, 4, 3, 60],
                9: [-4, 60],
                10: [3, 3],
                11: [3, 3, 60],
                12: [-4],
                13: [-4, 3, 60],
                14: [3, -4, 3],
                15: [3, -1, 2, 62],
                16: [3, 3, 3, 60],
                17: [-7, 7, 57],
                18: [-4, 3, 60, 3],
                19: [3, -4, 60],
            },
        ),
        ([], {operation: [] for operation in range(20)}),
        ([-7], {5: [-3], 9: [], 10: [-7], 13: [], 14: [], 15: [-7], 17: [], 18: [-7]}),
    ],
)
def test_the_reference_does_what_operations_say(numbers, outputs):
    assert {op: run_list([op], numbers) for op in outputs} == outputs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"split": HELD_OUT, "spare": 2},
        {"split": ALL, "length": 1, "shaping": 0.5},
        {"length": 2, "mixed": 1, "spare": 3, "shaping": 1.0},
        {"length": 3},
    ],
)
def test_it_is_the_reference_step_by_step(settings):
    copies, rng = 4, np.random.default_rng(0)
    vec = make(copies, **settings)
    vec.async_reset(seed=11)
    batch = vec.recv()
    tasks = [ListTask(derive(11, i), **settings) for i in range(copies)]
    steps, solved, used = (20, 0, set()) if settings.get("length") == 3 else (120, 0, set())
    for _ in range(steps):
        for row, task in zip(batch.observations, tasks, strict=True):
            assert np.array_equal(row, task.observation())
        wise = rng.random(copies) < 0.8
        done = [len(task.program) + task.spare - task.left for task in tasks]
        actions = [
            task.program[at] if knows and at < len(task.program) else int(rng.integers(20))
            for task, at, knows in zip(tasks, done, wise, strict=True)
        ]
        used |= set(actions)
        vec.send(np.array(actions).reshape(-1, 1))
        batch = vec.recv()
        for i, task in enumerate(tasks):
            reward, ended, right, shown = task.step(actions[i])
            assert batch.rewards[i] == pytest.approx(reward, abs=1e-6)
            assert batch.terminations[i] == ended
            assert not batch.truncations[i]
            if ended:
                assert np.array_equal(batch.final[i], task.observation())
                (info,) = batch.infos[i]
                assert (info["solved"], info["shown"]) == (right, shown)
                solved += right
                task.reset()
    assert solved > 0
    assert len(used) == len(OPERATIONS) or steps == 20


def seen_programs(split, resets=40, **settings):
    with make(256, split=split, **settings) as vec:
        found = []
        for seed in range(resets):
            vec.reset(seed=seed)
            found += programs_of(vec)
    return found


def functions_of(programs):
    """What programs do to many lists, by program."""
    rng = np.random.default_rng(5)
    lists = [rng.integers(-8, 9, rng.integers(3, 7)).tolist() for _ in range(200)]
    return {
        tuple(program): str([run_list(list(program), x) for x in lists])
        for program in set(map(tuple, programs))
    }


def test_nothing_that_is_held_out_is_trained_on():
    trained, held = (functions_of(seen_programs(split)) for split in (TRAIN, HELD_OUT))
    assert not set(trained.values()) & set(held.values())
    share = len(set(held.values())) / len({*trained.values(), *held.values()})
    assert 0.1 < share < 0.3
    assert not any(is_held_out(list(program)) for program in trained)
    assert all(is_held_out(list(program)) for program in held)


def test_single_operations_are_trained_on_and_never_held_out():
    counts = {split: seen_programs(split, 8, length=2, mixed=1) for split in (TRAIN, HELD_OUT)}
    assert {p[0] for p in counts[TRAIN] if len(p) == 1} == set(range(20))
    assert {len(program) for program in counts[HELD_OUT]} == {2}
    assert {len(p) for p in seen_programs(HELD_OUT, 1, length=1)} == {1}


def test_longer_programs_to_train_on_have_no_part_that_is_held_out():
    programs = seen_programs(TRAIN, 2, length=3)
    assert not any(has_held_out_part(program) for program in programs)
    assert any(has_held_out_part(program) for program in seen_programs(ALL, 1, length=3))
    assert all(is_held_out(program) for program in seen_programs(HELD_OUT, 1, length=3))


def test_no_task_has_a_shorter_program():
    for seed in range(20):
        assert not ListTask(
            seed, split=seed % 3
        ).has_shortcut()  # tasks equal those of C, see above
    degenerate = ListTask(0)
    degenerate.outputs = [run_list([4], x) for x in degenerate.lists]
    assert degenerate.has_shortcut()


def test_hidden_examples_decide():
    for spoiled in (False, True):
        with make() as vec:
            vec.reset(seed=4)
            state = vec.state()
            count = state[:, HIDDEN_OUTPUT_AT]
            assert 0 <= count[0] <= 6
            if spoiled:
                state[:, HIDDEN_OUTPUT_AT] = (count + 1) % 6
            vec.set_state(state)
            (program,) = programs_of(vec)
            for operation in program:
                vec.send(np.array([[operation]]))
                batch = vec.recv()
            (info,) = batch.infos[0]
            assert batch.rewards[0] == info["solved"] == (not spoiled)
            assert info["shown"] == 1


@pytest.mark.parametrize("split", [TRAIN, HELD_OUT])
def test_chance_solves_few(split):
    rng = np.random.default_rng(1)
    with make(1024, split=split) as vec:
        vec.reset(seed=2)
        solved, episodes = 0.0, 0.0
        for _ in range(40):
            vec.send(rng.integers(0, 20, (1024, 1)))
            told = vec.recv().infos.episodes
            episodes, solved = episodes + told[:, 0].sum(), solved + told[:, 3].sum()
    assert episodes > 10_000
    assert 0 < solved / episodes < 0.02


def test_a_group_has_the_same_tasks():
    with fugu.make("list_dsl", 8, group_size=4) as vec:
        vec.reset(seed=1)
        programs = programs_of(vec)
        assert [len({*map(tuple, part)}) for part in (programs[:4], programs[4:])] == [1, 1]
        rows = vec._buffers.rows[0].observations
        assert (rows[:4] == rows[0]).all()
        assert not (rows[4:] == rows[0]).all()


@pytest.mark.parametrize(("given", "meant"), [("list-dsl", "list_dsl"), ("brainf", "brainf")])
def test_names_of_coding_tasks_mean_them(given, meant):
    pytest.importorskip("torch")
    from fugu.training.config import env_settings

    with make(2, f"coding:{given}") as vec, make(2, meant) as plain:
        assert np.array_equal(vec.reset(seed=3)[0], plain.reset(seed=3)[0])
    assert env_settings(f"coding:{given}") == env_settings(meant) != {}
