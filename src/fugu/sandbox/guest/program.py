"""Run one untrusted program: compile it, call it, send its answers.

Messages out, each a tuple: ("syntax", text), ("failed", kind, text), ("loaded",), then an answer to
each call, ("value", value), ("raised", kind, text), ("long", text) or ("memory",), and ("end",).
"""

from __future__ import annotations

import functools
import io
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from .codec import CodecError, TooLongError, encode

Write = Callable[[bytes], None]
Read = Callable[[], Any]
_NAME = "<program>"
_TEXT = 2000  # characters of an error
_LOADED, _END = encode(("loaded",)), encode(("end",))
_NO_MEMORY = encode(("memory",))  # made while there is memory
_WHILE_COMPILING = (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError)


def execute(request: dict[str, Any], read: Read, write: Write) -> None:
    """Run a request; `read` returns further calls of a session."""
    try:
        code = compile(request["source"], _NAME, "exec", dont_inherit=True)
    except _WHILE_COMPILING as error:
        write(encode(("syntax", _describe(error)[1])))
        return
    if request["entry"]:
        _call(code, request, read, write)
    else:
        _script(code, request, write)
    sys.stdout.flush()
    sys.stderr.flush()
    write(_END)


def _call(code: types.CodeType, request: dict[str, Any], read: Read, write: Write) -> None:
    entry, most = request["entry"], request["result"]
    namespace = _module("program")
    try:
        exec(code, namespace)
        function = namespace[entry]
    except MemoryError:
        write(_NO_MEMORY)
        return
    except BaseException as error:
        missing = type(error) is KeyError and entry not in namespace
        kind, text = ("NameError", f"it defines no {entry}") if missing else _describe(error)
        write(encode(("failed", kind, text)))
        return
    write(_LOADED)
    for args, kwargs in request["calls"]:
        write(_answer(functools.partial(function, *args, **kwargs), most))
    while request["session"]:
        message = read()
        if message[0] != "call":
            return
        _, args, kwargs = message
        write(_answer(functools.partial(function, *args, **kwargs), most))


def _script(code: types.CodeType, request: dict[str, Any], write: Write) -> None:
    """Run the program once for each standard input; its answer is what it prints."""
    write(_LOADED)
    for text in request["stdin"]:
        os.ftruncate(0, 0)
        os.pwrite(0, text.encode("utf-8", "surrogateescape"), 0)
        os.lseek(0, 0, os.SEEK_SET)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
        write(_answer(lambda: _printed(code), request["result"]))


def _printed(code: types.CodeType) -> str:
    start = os.lseek(1, 0, os.SEEK_CUR)
    try:
        exec(code, _module("__main__"))
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.stdout.flush()
    stop = os.lseek(1, 0, os.SEEK_CUR)
    return os.pread(1, stop - start, start).decode("utf-8", "replace")


def _module(name: str) -> dict[str, Any]:
    """Return the names of a new module, which classes of the program can find."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module.__dict__


def _answer(work: Callable[[], object], most: int) -> bytes:
    """Return the answer of a call as a payload."""
    try:
        return encode(("value", work()), most)
    except TooLongError as error:
        return encode(("long", str(error)))
    except CodecError as error:
        return encode(("raised", "TypeError", f"the answer is {error}"))
    except MemoryError:
        return _NO_MEMORY
    except BaseException as error:
        return encode(("raised", *_describe(error)))


def _describe(error: BaseException) -> tuple[str, str]:
    """Return the type of an error, and its text with the line of the program that raised it."""
    kind = str(type.__dict__["__name__"].__get__(type(error)))[:100]
    try:
        text = str(error)[:_TEXT]
    except BaseException:  # its own __str__ fails
        text = ""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return kind, f"{text} (line {line})" if line else text
