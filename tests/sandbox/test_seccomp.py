"""Seccomp filters decide as their tables say: run here step by step, as the kernel would."""

from __future__ import annotations

import os
import struct

import pytest

from fugu.sandbox.guest import seccomp

pytestmark = pytest.mark.skipif(not seccomp.NUMBERS, reason="no numbers for this processor")
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
PID = 4321


def decide(code: bytes, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What a filter returns for a call."""
    padded = [value & (2**64 - 1) for value in (*arguments, *(0,) * (6 - len(arguments)))]
    kind = seccomp.ARCHITECTURE if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, kind, 0, *padded)
    instructions = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    at, value, steps = 0, 0, 0
    while True:
        steps += 1
        assert steps < 100
        operation, if_true, if_false, k = instructions[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
        elif operation == 0x54:
            value &= k
        elif operation == 0x15:
            at += if_true if value == k else if_false
        elif operation == 0x35:
            at += if_true if value >= k else if_false
        elif operation == 0x05:
            at += k
        else:
            assert operation == 0x06
            return int(k)


def serving(*, scratch: bool = False) -> bytes:
    decisions = seccomp.serving(scratch=scratch)
    return seccomp.build(decisions, seccomp.EPERM)


def program() -> bytes:
    return seccomp.build(seccomp.programs(PID), True)


def test_every_number_is_decided_as_the_table_says() -> None:
    for table, default, code in (
        (seccomp.serving(scratch=False), EPERM, serving()),
        (seccomp.programs(PID), ALLOW, program()),
    ):
        for number in [*range(600), 2**30, 2**32 - 1]:
            decision = table.get(number)
            if decision is None:
                assert decide(code, number) == default, number
            elif decision is True:
                assert decide(code, number) == ALLOW, number
            elif isinstance(decision, int):
                assert decide(code, number) == 0x00050000 | decision, number


def test_files_open_for_reading_only_unless_there_is_scratch() -> None:
    number = seccomp.NUMBERS["openat"]
    reading = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
    assert decide(serving(), number, 0, 0, reading) == ALLOW
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_TMPFILE):
        assert decide(serving(), number, 0, 0, reading | flag) == EPERM
        assert decide(serving(scratch=True), number, 0, 0, reading | flag) == ALLOW


def test_a_program_may_signal_only_itself() -> None:
    for name in ("kill", "tgkill"):
        number = seccomp.NUMBERS[name]
        assert decide(program(), number, PID) == ALLOW
        for other in (0, 1, -1, -PID, PID + 1):
            assert decide(program(), number, other) == EPERM


def test_limits_can_be_asked_for_and_not_set() -> None:
    number = seccomp.NUMBERS["prlimit64"]
    assert decide(program(), number, 0, 7, 0, 1 << 40) == ALLOW
    for pid, pointer in ((0, 1), (0, 1 << 32), (PID, 0)):
        assert decide(program(), number, pid, 7, pointer) == EPERM


def test_no_new_processes_sockets_or_owners_of_descriptors() -> None:
    numbers = seccomp.NUMBERS
    for name in ("clone", "sendmsg", "recvmsg", "memfd_create", "prctl", "seccomp", "pidfd_open"):
        assert decide(serving(), numbers[name]) == ALLOW
        assert decide(program(), numbers[name]) == EPERM
    assert decide(serving(), numbers["clone3"]) == ENOSYS
    for command, answer in ((0, ALLOW), (1030, ALLOW), (8, EPERM), (10, EPERM), (1024, EPERM)):
        assert decide(serving(), numbers["fcntl"], 0, command) == answer
    for request, answer in ((0x5401, ALLOW), (0x5451, ALLOW), (0x5412, EPERM)):
        assert decide(serving(), numbers["ioctl"], 0, request) == answer


def test_calls_of_another_architecture_kill() -> None:
    assert decide(serving(), 0, architecture=0x40000003) == KILL
    assert decide(program(), 0, architecture=0x40000003) == KILL


def test_long_filters_jump_over_more_than_a_byte_can_say() -> None:
    decisions: dict[int, seccomp.Decision] = {2 * n: n % 90 + 2 for n in range(400)}
    code = seccomp.build(decisions, True)
    for number in range(900):
        expected = 0x00050000 | decisions[number] if number in decisions else ALLOW  # type: ignore[operator]
        assert decide(code, number) == expected
