"""Workers: each owns a range of environments and steps those whose turn it is."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fugu.core.errors import ActionError, EnvError, UsageError
from fugu.core.seeding import derive
from fugu.envs.contract import Env
from fugu.envs.emulated import EmulatedEnv, find_holder
from fugu.envs.emulation import emulate
from fugu.envs.finite import make_check, say_what_is_not_finite
from fugu.envs.native_env import NativeEnv
from fugu.envs.states import from_json
from fugu.vector.channel import Channel
from fugu.vector.slab import Slab

if TYPE_CHECKING:
    from fugu._native import Exchange, FiniteCheck

DONE, TIMEOUT, CLOSING, COMMAND, ODD, ERROR, INFOS, NOT_FINITE = range(8)  # of Exchange.serve
RESTARTS = 0x7265  # the branch of the seed tree for environments that were restarted
PATIENCE = 0.5  # seconds to wait at a time
POLLING = 0.0005  # seconds between two polls of environments that wait for something outside
NATIVE = (
    "set_env: expected Python environments; got native ones, whose attributes cannot change while "
    "they run. Set their arguments with env_kwargs."
)
SPARING = 8.0  # times as long as polling all of them took: the rest is for whom they wait for


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
        """One environment that reads and writes rows."""
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
        self, index: int, setup: Setup, slab: Slab, exchange: Exchange, channel: Channel
    ) -> None:
        self._index, self._setup, self._slab = index, setup, slab
        self._exchange, self._channel = exchange, channel
        self._first, end = exchange.envs_of(index)
        count = end - self._first
        self._envs: list[Env | None] = [None] * count
        self._steps: list[Callable[[], None] | None] = [None] * count  # of those easily stepped
        self._checks: list[FiniteCheck | None] = [None] * count
        self._seeds: list[int | None] = [None] * count
        self._polled: dict[int, float] = {}  # environments to poll, and since when
        self._next_poll = 0.0
        self._patience = min(PATIENCE, setup.step_timeout / 4)  # between two signs of life
        self._commands: dict[int, tuple[Any, ...]] = {}  # that have come, by environment

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
        """Serve up to `limit` environments that are due; what ended it, an event of the exchange.

        It waits for the first for at most `timeout`.
        """
        if self._polled:
            left = self._next_poll - time.monotonic()
            limit, timeout = 1, min(timeout, max(left, 0.0))
        event, number, error = self._exchange.serve(
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
        """Close every environment, whatever they say to it."""
        for i, env in enumerate(self._envs):
            self._envs[i] = self._steps[i] = None
            _close(env)

    # ------------------------------------------------------------------ steps

    def _step(self, number: int) -> None:
        """A step that wants care: of an environment that is gone, was broken, or is polled."""
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
                self._exchange.leave(self._index)
        except (Exception, SystemExit) as error:
            self._fail(number, error)

    def _poll(self) -> None:
        began = time.monotonic()
        for number, since in list(self._polled.items()):
            env = self._envs[number - self._first]
            assert env is not None
            self._exchange.leave(self._index)  # a sign of life before each
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
        self._exchange.done(self._index, number)

    def _check(self, number: int, env: Env) -> None:
        check = self._checks[number - self._first]
        if check is not None and not check.finite():
            raise EnvError(say_what_is_not_finite(env, number))

    def _restart(self, number: int) -> None:
        """An environment that is gone: a new one begins, and the step that was due is broken."""
        seed = self._seeds[number - self._first]
        # The time, since a new process knows nothing of the restarts before it.
        fresh = None if seed is None else derive(seed, RESTARTS, time.monotonic_ns())
        env = self._open(number)
        env.reset(fresh)
        self._check(number, env)
        self._mark(number, valid=False)
        self._exchange.done(self._index, number)

    def _open(self, number: int) -> Env:
        env = self._setup.make()
        if env.groups != self._slab.groups:
            raise EnvError(
                f"environment {number}: given the groups {env.groups}; allowed: those of the first "
                f"copy, {self._slab.groups}. All copies need the same agents and spaces."
            )
        env.groups = self._slab.groups  # one compiled layout for all copies stays in the cache
        env.copy_number = number
        env.bind(*self._slab.of_env(number))
        self._envs[number - self._first] = env
        if self._setup.check_finite and not isinstance(env, NativeEnv):
            self._checks[number - self._first] = make_check(env.groups, env.buffers)
        return env

    def _mark(self, number: int, *, valid: bool) -> None:
        for rows in self._slab.of_env(number):
            rows.valid[:] = valid

    def _fail(self, number: int, error: BaseException) -> None:
        """Drop the environment and report; the learner decides how it goes on."""
        self._polled.pop(number, None)
        if isinstance(error, ActionError):  # not its mistake, and it has not stepped
            self._send("fault", number, "", error)
            self._exchange.done(self._index, number, True)
            return
        i = number - self._first
        env = self._envs[i]
        self._envs[i] = self._steps[i] = None
        _close(env)
        text = "".join(traceback.format_exception(error))
        self._send("fault", number, text, None)
        self._exchange.done(self._index, number, True)

    # ------------------------------------------------------------------ commands

    def _command(self, number: int) -> None:
        """Do what the mail says: reset, or call something of the environment itself."""
        while number not in self._commands:
            for command in self._channel.receive():
                self._commands[command[1]] = command
            if number not in self._commands:
                time.sleep(0.0001)  # the bell rings before the letter is written to its end
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
            self._exchange.done(self._index, number)

    def _reset(self, number: int, seed: int | None, options: Mapping[str, Any] | None) -> None:
        i = number - self._first
        env = self._envs[i] or self._open(number)
        if seed is not None:
            self._seeds[i] = seed
        self._mark(number, valid=True)
        env.reset(seed, options)
        self._finish(number, env)

    def _send(self, *message: Any) -> None:
        self._channel.send(message, self._ask)
        self._exchange.send_mail(self._index, False)

    def _ask(self) -> None:
        self._exchange.send_mail(self._index, True)


def call_environment(
    env: Env,
    number: int,
    name: str,
    value: Any,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> tuple[Any, ...]:
    """Have an environment do what `Vector.ask` asks for: a reply, or a refusal, as a message."""
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
