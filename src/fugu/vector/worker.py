"""Workers: each owns a range of environments and steps those whose turn it is."""

from __future__ import annotations

import os
import pickle
import select
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from fugu.core.errors import ActionError, EnvError, UsageError
from fugu.core.seeding import derive
from fugu.envs.contract import Env
from fugu.envs.emulated import EmulatedEnv, find_holder
from fugu.envs.emulation import emulate
from fugu.envs.finite import make_check, say_what_is_not_finite
from fugu.envs.native_env import NativeEnv
from fugu.envs.states import from_json
from fugu.vector.backends import Message
from fugu.vector.shared_buffers import SharedBuffers

if TYPE_CHECKING:
    from fugu._native import Exchange, FiniteCheck

DONE, TIMEOUT, CLOSING, COMMAND, ODD, ERROR, INFOS, NOT_FINITE = range(8)  # of Exchange.serve
RESTARTS = 0x7265  # the branch of the seed tree for environments that were restarted
PATIENCE = 0.5  # seconds to wait at a time
POLLING = 0.0005  # seconds between two polls of environments that wait for something outside
SPARING = 8.0  # times as long as polling all of them took: the rest is for whom they wait for
NATIVE = (
    "set_env: expected Python environments; got native ones, whose attributes cannot change while "
    "they run. Set their arguments with env_kwargs."
)
_HEADER = struct.Struct("!Q")


@dataclass(frozen=True)
class Setup:
    """What every worker needs to know.

    Attributes:
        factory: Makes one environment.
        emulation: Settings of `fugu.emulate`.
        step_timeout: Seconds that an environment that is polled may take for a step.
        check_finite: Whether a reward or an observation that is NaN or infinite is a fault.
        one_thread: Keep libraries that environments use from starting threads of their own.
        attributes: Attributes that were set, as JSON: environments that are made later get them.
    """

    factory: Callable[[], Any]
    emulation: Mapping[str, Any] = field(default_factory=dict)
    step_timeout: float = 60.0
    check_finite: bool = True
    one_thread: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    def make(self) -> Env:
        """Make one environment that reads and writes rows."""
        env = self.factory()
        if self.one_thread and (cv2 := sys.modules.get("cv2")):
            cv2.setNumThreads(1)  # it has its own pool, and a variable does not reach it
        env = env if isinstance(env, Env) else emulate(env, **self.emulation)
        for name, text in self.attributes.items():
            set_attribute(env, name, text)
        return env


class Worker:
    """Steps its environments, for a process, a thread, or the caller itself."""

    def __init__(
        self, index: int, setup: Setup, buffers: SharedBuffers, queue: Exchange, channel: Channel
    ) -> None:
        self._index, self._setup, self._buffers = index, setup, buffers
        self._queue, self._channel = queue, channel
        self._first, end = queue.envs_of(index)
        count = end - self._first
        self._envs: list[Env | None] = [None] * count
        self._steps: list[Callable[[], None] | None] = [None] * count  # of those easily stepped
        self._checks: list[FiniteCheck | None] = [None] * count
        self._seeds: list[int | None] = [None] * count
        self._polled: dict[int, float] = {}  # environments to poll, and since when
        self._next_poll = 0.0
        self._patience = min(PATIENCE, setup.step_timeout / 4)  # between two signs of life
        self._commands: dict[int, Message] = {}  # that have come, by environment

    def run(self) -> None:
        """Serve until the learner closes."""
        try:
            while self.serve(1 << 30, self._patience) != CLOSING:
                pass
        finally:
            self.close()

    @property
    def polls(self) -> bool:
        """Whether environments are under way that must be polled."""
        return bool(self._polled)

    def serve(self, limit: int, timeout: float) -> int:
        """Serve up to `limit` environments that are due; return the event that ended it.

        It waits for the first for at most `timeout` seconds.
        """
        if self._polled:
            left = self._next_poll - time.monotonic()
            limit, timeout = 1, min(timeout, max(left, 0.0))
        event, number, error = self._queue.serve(
            self._index, self._steps, self._envs, self._checks, limit, timeout
        )
        if event == ODD:
            self._step(number)
        elif event in (INFOS, NOT_FINITE):
            env = self._envs[number - self._first]
            assert env is not None
            try:
                self._finish(number, env)
            except EnvError as not_finite:
                self._fail(number, not_finite)
        elif event == ERROR:
            assert error is not None
            self._fail(number, error)
        elif event == COMMAND:
            self._command(number)
        if self._polled and time.monotonic() >= self._next_poll:
            self._poll()
        return event

    def close(self) -> None:
        """Close every environment, whatever it raises."""
        for i, env in enumerate(self._envs):
            self._envs[i] = self._steps[i] = None
            _close(env)

    # ------------------------------------------------------------------ steps

    def _step(self, number: int) -> None:
        """Step an environment that is gone, was broken, or is polled."""
        i = number - self._first
        env = self._envs[i]
        try:
            if env is None:
                self._restart(number)
                return
            self._mark(number, valid=True)
            if type(env).poll is Env.poll:
                self._steps[i] = env.step  # from now on an easy one
                env.step()
                self._finish(number, env)
            else:
                env.begin_step()
                if env.poll():
                    self._finish(number, env)
                    return
                self._polled[number] = time.monotonic()
                self._queue.leave(self._index)
        except (Exception, SystemExit) as error:
            self._fail(number, error)

    def _poll(self) -> None:
        began = time.monotonic()
        for number, since in list(self._polled.items()):
            env = self._envs[number - self._first]
            assert env is not None
            self._queue.leave(self._index)  # a sign of life before each
            try:
                if env.poll():
                    del self._polled[number]
                    self._finish(number, env)
                elif began - since > self._setup.step_timeout:
                    raise TimeoutError(f"poll() is False after {self._setup.step_timeout} s")
            except (Exception, SystemExit) as error:
                self._fail(number, error)
        now = time.monotonic()
        self._next_poll = now + max(POLLING, SPARING * (now - began))

    def _finish(self, number: int, env: Env) -> None:
        """Hand an environment's rows over; an `EnvError` if they hold what is not finite."""
        self._check(number, env)
        if env.infos:
            self._send("infos", number, tuple(env.infos))
        self._queue.done(self._index, number)

    def _check(self, number: int, env: Env) -> None:
        check = self._checks[number - self._first]
        if check is not None and not check.finite():
            raise EnvError(say_what_is_not_finite(env, number))

    def _restart(self, number: int) -> None:
        """Make an environment again that is gone; the step that was due is broken."""
        seed = self._seeds[number - self._first]
        # The time, since a new process knows nothing of the restarts before it.
        fresh = None if seed is None else derive(seed, RESTARTS, time.monotonic_ns())
        env = self._open(number)
        env.reset(fresh)
        self._check(number, env)
        self._mark(number, valid=False)
        self._queue.done(self._index, number)

    def _open(self, number: int) -> Env:
        env = self._setup.make()
        if env.groups != self._buffers.groups:
            raise EnvError(
                f"environment {number}: given the groups {env.groups}; allowed: those of the first "
                f"copy, {self._buffers.groups}. All copies need the same agents and spaces."
            )
        env.groups = self._buffers.groups  # one compiled layout for all copies stays in the cache
        env.copy_number = number
        env.bind(*self._buffers.of_env(number))
        self._envs[number - self._first] = env
        if self._setup.check_finite and not isinstance(env, NativeEnv):
            self._checks[number - self._first] = make_check(env.groups, env.buffers)
        return env

    def _mark(self, number: int, *, valid: bool) -> None:
        for rows in self._buffers.of_env(number):
            rows.valid[:] = valid

    def _fail(self, number: int, error: BaseException) -> None:
        """Drop the environment and report; the learner decides how it goes on."""
        self._polled.pop(number, None)
        text = ""
        if not isinstance(error, ActionError):  # which is the caller's mistake: it has not stepped
            i = number - self._first
            env = self._envs[i]
            self._envs[i] = self._steps[i] = None
            _close(env)
            text = "".join(traceback.format_exception(error))
        self._send("fault", number, text, None if text else error)
        self._queue.done(self._index, number, True)

    # ------------------------------------------------------------------ commands

    def _command(self, number: int) -> None:
        """Do what a message asks: reset, or call something of the environment itself."""
        while number not in self._commands:
            for command in self._channel.receive():
                self._commands[command[1]] = command
            if number not in self._commands:
                time.sleep(0.0001)  # the environment is posted before its message is written
        kind, _, *arguments = self._commands.pop(number)
        try:
            if kind == "reset":
                self._reset(number, *arguments)
                return
            env = self._envs[number - self._first] or self._open(number)
        except (Exception, SystemExit) as error:
            self._fail(number, error)
        else:
            self._steps[number - self._first] = None  # it may be another from now on
            reply = call_environment(env, number, *arguments)
            kind, _, key = arguments[0].partition(" ")
            if kind == "assign" and reply[0] == "reply":
                self._setup.attributes[key] = arguments[1]
            self._send(*reply)
            self._queue.done(self._index, number)

    def _reset(self, number: int, seed: int | None, options: Mapping[str, Any] | None) -> None:
        i = number - self._first
        env = self._envs[i] or self._open(number)
        if seed is not None:
            self._seeds[i] = seed
        self._mark(number, valid=True)
        env.reset(seed, options)
        self._finish(number, env)

    def _send(self, *message: Any) -> None:
        self._channel.send(message, lambda: self._queue.send_mail(self._index, True))
        self._queue.send_mail(self._index, False)


def call_environment(
    env: Env,
    number: int,
    name: str,
    value: Any,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Message:
    """Have an environment do what `Vector.ask` names; return a reply, or a refusal."""
    try:
        return "reply", number, _call(env, name, value, arguments, named)
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(error))
        return "refusal", number, f"{type(error).__name__}: {error}", text


def _call(
    env: Env, name: str, value: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """`get`, `set` or `call` an attribute of the environment that was adapted, or the like."""
    source = getattr(env, "source", env)
    look = getattr(source, "get_wrapper_attr", None) or (lambda key: getattr(source, key))
    kind, key = name.split(" ", 1)
    if kind == "render":
        return env.render()
    if kind == "apply":
        return value(env, *arguments)
    if kind == "assign":
        return set_attribute(env, key, value)
    if kind == "set":
        setter = getattr(source, "set_wrapper_attr", None)
        return setter(key, value) if setter else setattr(source, key, value)
    found = look(key)
    return found(*arguments, **named) if kind == "call" and callable(found) else found


def set_attribute(env: Env, name: str, text: str) -> None:
    """Set an attribute of an environment, or of what it wraps, from JSON."""
    if isinstance(env, NativeEnv):
        raise UsageError(NATIVE)
    if isinstance(env, EmulatedEnv):
        env.set_attribute(name, text)
    else:
        setattr(find_holder(env, name), name, from_json(text))


def _close(env: Env | None) -> None:
    if env is not None:
        try:
            env.close()
        except (Exception, SystemExit):
            traceback.print_exc()


# ------------------------------------------------------------------ messages beside the rows


class PipeChannel:
    """Carries messages between processes; nothing that is sent on every step passes here."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._descriptor = connection.fileno()
        os.set_blocking(self._descriptor, False)
        self._pending = bytearray()

    def send(self, message: Message, waiting: Callable[[], None]) -> None:
        """Send; `waiting` is called now and then while the other end does not read."""
        if self._connection.closed:  # its descriptor may be another file's by now
            raise BrokenPipeError("expected an open channel; got one that was closed")
        body = dump(message)
        rest = memoryview(_HEADER.pack(len(body)) + body)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                waiting()
                if self._connection.closed:
                    raise BrokenPipeError("the other end was replaced meanwhile") from None
                select.select([], [self._descriptor], [], 0.05)

    def receive(self) -> list[Message]:
        """Return all messages that have arrived; EOFError once the other end is gone."""
        while True:
            try:
                piece = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                break
            except ConnectionError:
                piece = b""
            if not piece:
                if self._pending:
                    break
                raise EOFError
            self._pending += piece
        found, start = [], 0
        while start + _HEADER.size <= len(self._pending):
            (length,) = _HEADER.unpack_from(self._pending, start)
            begin = start + _HEADER.size
            if begin + length > len(self._pending):
                break
            found.append(pickle.loads(memoryview(self._pending)[begin : begin + length]))
            start = begin + length
        del self._pending[:start]
        return found

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


class LocalChannel:
    """Carries messages between threads, or within one."""

    def __init__(self, inbox: deque[Message], outbox: deque[Message]) -> None:
        self._inbox, self._outbox = inbox, outbox

    @classmethod
    def pair(cls) -> tuple[LocalChannel, LocalChannel]:
        """Return the two ends of one."""
        a: deque[Message] = deque()
        b: deque[Message] = deque()
        return cls(a, b), cls(b, a)

    def send(self, message: Message, waiting: Callable[[], None]) -> None:
        """Send, without waiting."""
        self._outbox.append(message)

    def receive(self) -> list[Message]:
        """Return all messages that have arrived."""
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def close(self) -> None:
        """There is nothing to close."""


Channel = PipeChannel | LocalChannel


def dump(message: Any) -> bytes:
    """Pickle a message; parts that cannot be pickled are sent as their text rather than lost."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return pickle.dumps(_picklable(message), pickle.HIGHEST_PROTOCOL)


def _picklable(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_picklable(item) for item in value)
    if isinstance(value, dict):
        return {key: _picklable(item) for key, item in value.items()}
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value
