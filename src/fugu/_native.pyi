"""The extension module, built from native/bind."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

class Packer:
    """Walks Python values and flat rows by the nodes of one layout."""

    def __init__(
        self,
        root: object,
        dtype: np.dtype[Any],
        size: int,
        clear: bool,
        slow_pack: Callable[[Any, Any, NDArray[Any], int], None],
        slow_unpack: Callable[[Any, NDArray[Any], int], Any],
        refuse_row: Callable[[Any], None],
    ) -> None: ...
    def pack(self, value: Any, out: NDArray[Any], /) -> None: ...
    def unpack(self, row: NDArray[Any], copy: bool = False, /) -> Any: ...

def noop(value: Any, /) -> None: ...
def time_memcpy(source: NDArray[np.uint8], out: NDArray[np.uint8], repeats: int, /) -> float: ...

class Stepper:
    """One agent's ordinary steps of a Gymnasium environment."""

    def __init__(
        self,
        step: Callable[[Any], Any],
        slow_action: Callable[[], Any],
        action_packer: Any,
        action: NDArray[Any],
        observation_packer: Any,
        observation: NDArray[Any],
        rewards: NDArray[np.float32],
        row: int,
        /,
    ) -> None: ...
    def step(self) -> Any: ...
    def collect(self) -> tuple[float, int]: ...
    @property
    def count(self) -> int: ...

class FiniteCheck:
    """The floating-point numbers of some rows."""

    def add(
        self,
        rows: NDArray[np.uint8],
        spans: list[tuple[int, int, int]],
        flags: NDArray[np.bool_] | None = None,
        more_flags: NDArray[np.bool_] | None = None,
        /,
    ) -> None: ...
    def finite(self) -> bool: ...

class Exchange:
    """Whose turn each environment is, in memory that the learner and its workers share."""

    def __init__(self, memory: NDArray[np.uint8], workers: int, envs: int, spin: float) -> None: ...
    @staticmethod
    def bytes(workers: int, envs: int, /) -> int: ...
    def post(self, ids: NDArray[np.int64], command: bool = False, /) -> None: ...
    def wait_ready(
        self, begin: int, end: int, count: int, known_faults: int, timeout: float, /
    ) -> int: ...
    def take(self, begin: int, end: int, count: int, ids: NDArray[np.int64], /) -> int: ...
    def next(self, worker: int, timeout: float, /) -> int: ...
    def serve(
        self,
        worker: int,
        steps: list[Callable[[], None] | None],
        envs: list[Any],
        checks: list[FiniteCheck | None],
        limit: int,
        timeout: float,
        /,
    ) -> tuple[int, int, BaseException | None]: ...
    def done(self, worker: int, env: int, fault: bool = False, /) -> None: ...
    def silent(self, worker: int, /) -> tuple[float, int]: ...
    def hold(self, env: int, /) -> None: ...
    def state(self, env: int, /) -> int: ...
    def owner(self, env: int, /) -> int: ...
    def envs_of(self, worker: int, /) -> tuple[int, int]: ...
    def leave(self, worker: int, /) -> None: ...
    def send_mail(self, worker: int, waits: bool, /) -> None: ...
    def mail(self, worker: int, /) -> int: ...
    def read_mail(self, worker: int, /) -> None: ...
    def faults(self) -> int: ...
    def revive(self, worker: int, /) -> None: ...
    def close(self) -> None: ...

def gather(
    ids: NDArray[np.int64], sources: list[NDArray[np.uint8]], outs: list[NDArray[np.uint8]], /
) -> None: ...
def rasterise(
    background: int,
    shapes: list[Any],
    size: tuple[float, float],
    out: NDArray[np.uint8],
    /,
) -> None: ...

class Library:
    """A shared library that holds one native environment."""

    def __init__(self, path: str, /) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def settings(self) -> list[tuple[str, bool, float, float, float, str]]: ...
    def describe(self, values: list[float], /) -> dict[str, Any]: ...

class PoolCore:
    """What a pool is made of."""

class Pool:
    """Many copies of one native environment."""

    def __init__(
        self,
        library: Library,
        settings: list[float],
        envs: int,
        threads: int,
        helps: bool,
        chunk: int,
        stall: float,
    ) -> None: ...
    def bind(
        self,
        group: int,
        observations: NDArray[np.uint8],
        final: NDArray[np.uint8],
        actions: NDArray[np.uint8],
        masks: NDArray[np.bool_],
        rewards: NDArray[np.float32],
        costs: NDArray[np.float32],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        live: NDArray[np.bool_],
        /,
    ) -> None: ...
    def start(self, episodes: NDArray[np.float32], /) -> None: ...
    def reset(self, env: int, seed: int | None, /) -> None: ...
    def bad_action(self, group: int, actions: NDArray[np.uint8], /) -> int: ...
    def post_all(self) -> None: ...
    def take_all(self) -> None: ...
    def core(self) -> PoolCore: ...
    def step_now(self) -> None: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def all_act(self) -> bool: ...
    def save(self, ids: NDArray[np.int64], out: NDArray[np.uint8], /) -> None: ...
    def load(self, ids: NDArray[np.int64], states: NDArray[np.uint8], /) -> None: ...
    def draw(self, env: int, /) -> tuple[int, list[Any]]: ...
    def picture(self, env: int, out: NDArray[np.uint8], /) -> None: ...
    # What learners call of an Exchange.
    def post(self, ids: NDArray[np.int64], command: bool = False, /) -> None: ...
    def wait_ready(
        self, begin: int, end: int, count: int, known_faults: int, timeout: float, /
    ) -> int: ...
    def take(self, begin: int, end: int, count: int, ids: NDArray[np.int64], /) -> int: ...
    def done(self, worker: int, env: int, /) -> None: ...
    def silent(self, worker: int, /) -> tuple[float, int]: ...
    def owner(self, env: int, /) -> int: ...
    def send_mail(self, worker: int, waits: bool, /) -> None: ...
    def mail(self, worker: int, /) -> int: ...
    def read_mail(self, worker: int, /) -> None: ...
    def faults(self) -> int: ...
    def close(self) -> None: ...

_Flags: TypeAlias = NDArray[np.uint8] | NDArray[np.bool_]
_Product: TypeAlias = NDArray[np.float32] | NDArray[np.int16]  # bfloat16 as its bits

def advantages(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    final_values: NDArray[np.float32],
    ratios: NDArray[np.float32] | None,
    terminations: _Flags,
    truncations: _Flags,
    valid: _Flags | None,
    live: _Flags | None,
    out: NDArray[np.float32],
    returns_out: NDArray[np.float32] | None,
    gamma: float,
    decay: float,
    rho_clip: float,
    c_clip: float,
    threads: int,
    /,
) -> None: ...
def sample_categorical(
    logits: NDArray[np.float32],
    choices: NDArray[np.int64],
    masks: _Flags | None,
    live: _Flags | None,
    uniforms: NDArray[np.float32] | None,
    actions: NDArray[np.int64],
    log_probabilities: NDArray[np.float32],
    entropies: NDArray[np.float32],
    threads: int,
    /,
) -> tuple[int, int, int]: ...
def sample_normal(
    means: NDArray[np.float32],
    log_stds: NDArray[np.float32],
    noise: NDArray[np.float32] | None,
    live: _Flags | None,
    actions: NDArray[np.float32],
    log_probabilities: NDArray[np.float32],
    entropies: NDArray[np.float32],
    threads: int,
    /,
) -> tuple[int, int, int]: ...
def segment_probabilities(
    advantages: NDArray[np.float32],
    valid: _Flags | None,
    live: _Flags | None,
    alpha: float,
    epsilon: float,
    out: NDArray[np.float64],
    /,
) -> int: ...
def sample_segments(
    probabilities: NDArray[np.float64],
    uniforms: NDArray[np.float64],
    beta: float,
    inclusion: bool,
    out: NDArray[np.int64],
    weights: NDArray[np.float32],
    /,
) -> None: ...
def ppo_loss(
    params: NDArray[np.float32],
    values: NDArray[np.float32],
    samples: NDArray[np.float32],
    masks: _Flags | None,
    old_log_probs: NDArray[np.float32],
    advantages: NDArray[np.float32],
    old_values: NDArray[np.float32],
    returns: NDArray[np.float32],
    weights: NDArray[np.float32],
    choices: NDArray[np.int64],
    params_grad: NDArray[np.float32],
    values_grad: NDArray[np.float32],
    ratios: NDArray[np.float32],
    clip: float,
    value_loss: int,
    value_clip: float,
    huber_delta: float,
    value_coefficient: float,
    entropy_coefficient: float,
    normaliser: float,
    threads: int,
    /,
) -> tuple[bool, float, float, float, float, float, float]: ...
def adamw(
    weights: NDArray[np.float32],
    grads: NDArray[np.float32],
    means: NDArray[np.float32],
    squares: NDArray[np.float32],
    step: float,
    rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    threads: int,
    /,
) -> None: ...
def lstm_step(
    inputs: _Product,
    recurrents: _Product,
    input_bias: NDArray[np.float32],
    recurrent_bias: NDArray[np.float32],
    before: NDArray[np.float32],
    resets: _Flags | None,
    next_resets: _Flags | None,
    after: NDArray[np.float32],
    output: NDArray[np.float32] | None,
    kept: NDArray[np.float32] | None,
    fed: _Product | None,
    threads: int,
    /,
) -> None: ...

gru_step = lstm_step

def lstm_step_back(
    kept: NDArray[np.float32],
    before: NDArray[np.float32],
    after: NDArray[np.float32] | None,
    resets: _Flags | None,
    next_resets: _Flags | None,
    output_grad: NDArray[np.float32],
    fed_grad: _Product,
    memory_grad: NDArray[np.float32],
    inputs_grad: _Product,
    recurrents_grad: _Product | None,
    threads: int,
    /,
) -> None: ...

gru_step_back = lstm_step_back

def mingru_scan(
    gates: _Product,
    start: NDArray[np.float32],
    resets: _Flags | None,
    outputs: NDArray[np.float32],
    threads: int,
    /,
) -> None: ...
def mingru_scan_back(
    gates: _Product,
    start: NDArray[np.float32],
    resets: _Flags | None,
    outputs: NDArray[np.float32],
    outputs_grad: NDArray[np.float32],
    gates_grad: _Product,
    start_grad: NDArray[np.float32],
    threads: int,
    /,
) -> None: ...

_Floats: TypeAlias = NDArray[np.float32]

class ToldNet:
    """A network, told operation by operation; each gives the number of its value."""

    def begin(self) -> None: ...
    def read(self, rows: int, width: int, offset: int, code: str) -> int: ...
    def one_hot(
        self, rows: int, offset: int, code: str, start: list[int], counts: list[int]
    ) -> int: ...
    def embed(
        self,
        rows: int,
        offset: int,
        code: str,
        start: list[int],
        counts: list[int],
        offsets: list[int],
        table: _Floats,
    ) -> int: ...
    def state(self, begin: int, width: int) -> int: ...
    def constant(self, numbers: _Floats) -> int: ...
    def linear(self, value: int, weight: _Floats, bias: _Floats) -> int: ...
    def convolve(
        self,
        value: int,
        image: tuple[int, int, int],
        out: tuple[int, int, int],
        kernel: int,
        stride: int,
        padding: int,
        channels_last: bool,
        weight: _Floats,
        bias: _Floats,
    ) -> int: ...
    def pool(
        self,
        value: int,
        image: tuple[int, int, int],
        out: tuple[int, int, int],
        kernel: int,
        stride: int,
        padding: int,
    ) -> int: ...
    def scale(self, value: int, shift: _Floats, divisor: _Floats, most: float) -> int: ...
    def normalise(self, value: int, weight: _Floats, bias: _Floats, epsilon: float) -> int: ...
    def attend(
        self, query: int, keys: int, values: int, count: int, heads: int, bias: _Floats
    ) -> int: ...
    def apply(self, value: int, function: str) -> int: ...
    def combine(self, one: int, other: int, function: str) -> int: ...
    def blend(self, start: int, end: int, weight: int) -> int: ...
    def join(self, inputs: list[int]) -> int: ...
    def cut(self, value: int, begin: int, width: int) -> int: ...
    def reshape(self, value: int, rows: int, width: int) -> int: ...
    def permute(self, value: int, shape: list[int], order: list[int]) -> int: ...
    def keep(self, value: int, mask: int) -> int: ...
    def reduce(self, value: int, function: str, count: int) -> int: ...
    def recur(self, gates: int, cell: str, begin: int, weight: _Floats, bias: _Floats) -> int: ...

class NetRunner(ToldNet):
    """A network that runs."""

    def __init__(self, code: str, row_size: int, state_size: int, target: str) -> None: ...
    def end(self, given: list[int]) -> None: ...
    def forward(
        self,
        rows: NDArray[Any],
        state: _Floats,
        out: tuple[_Floats, _Floats, _Floats] | None,
    ) -> tuple[_Floats, _Floats, _Floats]: ...

class LossSettings:
    """Settings of PPO's loss."""

    def __init__(
        self,
        clip: float,
        value_clip: float,
        huber_delta: float,
        value_coefficient: float,
        entropy_coefficient: float,
        normaliser: float,
        value_loss: int,
    ) -> None: ...

class Pages:
    """Tables of segments."""

    def __init__(
        self,
        observations: NDArray[np.uint8],
        samples: _Floats,
        masks: NDArray[np.bool_],
        states: _Floats,
        log_probabilities: _Floats,
        rewards: _Floats,
        values: _Floats,
        final_values: _Floats,
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        valid: NDArray[np.bool_],
    ) -> None: ...

class NetLearner(ToldNet):
    """A network that learns: its weights stand in one block, their gradients in another."""

    most_agents: ClassVar[int]
    def __init__(
        self,
        code: str,
        row_size: int,
        state_size: int,
        target: str,
        weights: _Floats,
        grads: _Floats,
    ) -> None: ...
    def end(self, given: list[int]) -> None: ...
    def reload(self, pairs: bool) -> None: ...
    def forward(
        self,
        rows: NDArray[Any],
        state: _Floats,
        params: _Floats,
        values: _Floats,
        after: _Floats,
        threads: int,
    ) -> None: ...
    def collect(
        self,
        pool: PoolCore,
        pages: Pages,
        begin: int,
        first_segment: int,
        next_segment: int,
        states: _Floats,
        choices: NDArray[np.int64],
        dims: int,
        uniforms: _Floats,
        noise: _Floats,
        parts: list[tuple[int, int, _Floats | None, _Floats | None]],
        episodes: NDArray[np.float64],
        threads: int,
    ) -> str: ...
    def learn(
        self,
        pages: Pages,
        places: NDArray[np.int64],
        own: NDArray[np.int64],
        times: NDArray[np.int64] | None,
        weights: _Floats,
        merits: _Floats,
        advantages: _Floats,
        choices: NDArray[np.int64],
        ratios: _Floats,
        settings: LossSettings,
        threads: int,
    ) -> tuple[bool, float, float, float, float, float, float]: ...

def net_targets() -> list[tuple[str, int]]: ...
def orthogonalise(
    matrices: NDArray[np.float32], steps: NDArray[np.float32], threads: int
) -> None: ...
