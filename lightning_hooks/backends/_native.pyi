from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

MOMENTS: str

def setup_kernel(
    tensor: type,
    parameter: type,
    is_neg: Callable[[Tensor], bool],
    exchange: Any,
    threads: Callable[[], int],
    openmp: str | None,
    /,
) -> None: ...
def instructions() -> str: ...
def choose_instructions(name: str, /) -> bool: ...
def measure(tensor: Tensor, /) -> bytes | None: ...
def measure_histogram(tensor: Tensor, /) -> tuple[bytes, bytes] | None: ...
def measure_units(tensor: Tensor, axis: int, /) -> tuple[bytes, bytes] | None: ...
def measure_many(tensors: Sequence[Tensor], /) -> list[bytes | None]: ...

class Trail:
    def __init__(self, capacity: int, numbers: bytes = ..., /) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def bad(self) -> int: ...
    def note(self, row: int, minimum: float, maximum: float, nonfinite: float, abs_min: float, /) -> None: ...
    def entries(self, first: int, /) -> bytes: ...

class FallbackWriter:
    trail: Any
    direct: bool
    nanoseconds: int
    calls: int

class Writer:
    def __call__(self, tensor: Tensor, /) -> None: ...

def writer(table: Any, row: int, histogram: int | None, fallback: FallbackWriter, axis: int | None = None, /) -> Writer: ...
def measure_many_into(
    state: Tensor,
    firsts: NDArray[np.int64],
    tensors: Sequence[Tensor],
    subtracted: Sequence[Tensor] | None = None,
    histograms: NDArray[np.int64] | None = None,
    magnitudes: bool = True,
    /,
) -> list[int]: ...
def compare_many(
    state: Tensor, firsts: NDArray[np.int64], tensors: Sequence[Tensor], others: Sequence[Tensor], /
) -> list[int]: ...
def copy_many(into: Sequence[Tensor], tensors: Sequence[Tensor], /) -> list[int]: ...
def record(data: bytes, /) -> bytes: ...
def fill_floats(buffer: bytearray, runs: Any, numbers: Any, /) -> None: ...
def draw(tags: Sequence[str], counts: Any, limits: Any, /) -> bytes: ...
def setup_hooks(
    tensor: type,
    graph_task: Callable[[], int],
    floating: tuple[Any, ...],
    grad_enabled: Callable[[], bool],
    has_gradient: Callable[..., bool],
    /,
) -> None: ...
def place_hooks_in(dictionary: type | None, /) -> None: ...

class SwitchBase:
    is_on: bool
    awaits_loss: bool
    only_loss: bool
    saw_inner: bool
    is_loss: bool
    pass_number: int

class Readers:
    def __init__(self, calls: tuple[Callable[[Tensor], object], ...], /) -> None: ...
    def __call__(self, tensor: Tensor, /) -> None: ...

class GradReader:
    def __init__(self, switch: SwitchBase, read: Callable[..., Any], /) -> None: ...
    def __call__(self, grad: Any, /) -> None: ...

class Plain:
    called: set[int]
    read: Any
    grad: Any
    def __init__(
        self, switch: SwitchBase, called: set[int], read: Any, grad: Any, fall_back: Callable[..., Any], /
    ) -> None: ...
    def run(self, module: Any, args: Any, output: Any, /) -> Any: ...
