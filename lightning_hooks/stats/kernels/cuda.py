"""The measurement of moments on a CUDA device, in Triton.

A tensor from a hook takes one launch, which writes partial rows of moments. The partial rows of many tensors are merged into
the rows of a table with one further launch (`PartialRows`). A list of tensors takes one launch for each dtype, and one that
merges.

No function waits for the device: sizes are known on the host, and tables of arguments are copied through pinned memory. The
reference measures the tensors that these kernels do not measure: dtypes that are not floating, and subclasses.

Importing this module raises where Triton is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton import knobs

from lightning_hooks.stats import kernels
from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.kernels import FallbackWriter, reference, triton_code, triton_merge
from lightning_hooks.stats.kernels.addresses import CODES, Found, find
from lightning_hooks.stats.kernels.launching import Launch, current_stream, launcher
from lightning_hooks.stats.kernels.triton_code import BLOCK, SMALL_BLOCK
from lightning_hooks.stats.kernels.triton_merge import CHUNK
from lightning_hooks.stats.kernels.writers import DirectWriter
from lightning_hooks.stats.moments import MOMENTS

if TYPE_CHECKING:
    from lightning_hooks.stats.accumulators.store import Store

__all__ = ["PartialRows", "attempt", "measure", "measure_many", "measure_many_into"]

# The most programs of a launch, each of which measures one span of blocks, unless the spans already have _MOST_BLOCKS blocks.
# `_steps` divides blocks into spans, and says when half as many programs are better.
_PROGRAMS: Final = 1024
# The most blocks of a span. Deviations are taken from the mean of the first elements of a span, which is closer to the mean of
# the span if the span is short.
_MOST_BLOCKS: Final = 16
_CAPACITY: Final = 1 << 16  # partial rows that can wait for a merge: 4.7 MB
_BLOCKS: Final = {"BLOCK": BLOCK, "SMALL": SMALL_BLOCK}
_ROW_BYTES: Final = 8 * MOMENTS
_Integers: TypeAlias = NDArray[np.int64]
_Part: TypeAlias = tuple[int, int, int, int]
"""The offset of a row in the state; of a tensor to merge into it the elements, the first partial row, and the end of these."""


def measure(tensor: Tensor) -> Tensor:
    """The raw moments of a real and dense tensor, float64 [9] on its device, without waiting for the device."""
    return measure_many([tensor])[0]


def measure_many(tensors: Sequence[Tensor]) -> Tensor:
    """The raw moments of several tensors on one device, float64 [len(tensors), 9]."""
    if all(find(tensor, tensor.get_device()) is None for tensor in tensors):
        return reference.measure_many(tensors)
    out = torch.empty(len(tensors), MOMENTS, dtype=torch.float64, device=tensors[0].device)
    for position in measure_many_into(out, range(0, out.numel(), MOMENTS), tensors):
        out[position] = reference.measure(tensors[position])
    return out


def measure_many_into(
    out: Tensor,
    offsets: Sequence[int] | _Integers,
    tensors: Sequence[Tensor],
    before: Sequence[Tensor] | None = None,
    magnitudes: bool = True,
) -> list[int]:
    """Write the raw moments of several tensors, or of differences of pairs of tensors, into a tensor.

    Args:
        out: contiguous, float64, on a CUDA device; written.
        offsets: the index in `out` at which the row of each tensor begins; all distinct.
        tensors: one for each offset.
        before: a tensor to subtract from each of `tensors`, in float32 at least; none by default. No tensor is allocated for a
            difference.
        magnitudes: whether sums of magnitudes and underflow are measured; if not, they are NaN.

    Returns:
        The indices of the tensors that were skipped: other dtypes, subclasses, another device, or a pair that differs in shape
        or dtype.
    """
    lists, skipped = lists_of(out, tensors, before)
    if lists:
        with _current(out):
            _measure_lists(out, np.asarray(offsets, dtype=np.int64), lists, magnitudes, before is not None)
    return skipped


def lists_of(out: Tensor, tensors: Sequence[Tensor], before: Sequence[Tensor] | None) -> tuple[list[TensorList], list[int]]:
    """The tensors on the device of `out` as a list for each dtype, and the positions of those that no kernel measures."""
    device = out.get_device()
    lists: dict[torch.dtype, TensorList] = {}
    skipped: list[int] = []
    for position, tensor in enumerate(tensors):
        other = None
        if before is not None:
            other = before[position]
            if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
                skipped.append(position)
                continue
            if other.layout is tensor.layout is torch.strided and other.stride() != tensor.stride():
                tensor, other = tensor.contiguous(), other.contiguous()
        found = find(tensor, device)
        less = found if other is None else find(other, device)
        if found is None or less is None:
            skipped.append(position)
            continue
        of_dtype = lists.get(tensor.dtype)
        if of_dtype is None:
            of_dtype = lists[tensor.dtype] = TensorList(CODES[tensor.dtype])
        of_dtype.positions.append(position)
        of_dtype.found.append(found)
        of_dtype.less.append(less)
    return list(lists.values()), skipped


class PartialRows:
    """Keeps the partial rows of tensors from hooks until they are merged into the rows of a state.

    All partial rows between two merges are written on the stream that is current at the first tensor. Writers reject tensors on
    other streams.

    Args:
        state: contiguous, float64, on a CUDA device. The object writes to this tensor for as long as it exists.
        magnitudes: as for `measure_many_into`.
    """

    def __init__(self, state: Tensor, magnitudes: bool = True) -> None:
        self._state = state
        self._magnitudes = magnitudes
        self._device_index = state.get_device()
        self._rows = torch.empty(_CAPACITY, MOMENTS, dtype=torch.float64, device=state.device)
        self._address = self._rows.data_ptr()
        self._waiting: list[_Part] = []
        self._used = 0
        self._stream = 0
        self._launches: dict[torch.dtype, Launch] = {}

    def writer(self, offset: int) -> Callable[[Tensor], bool]:
        """A function that measures a tensor for the row at an offset of the state, or rejects the tensor and returns False."""

        def write(tensor: Tensor) -> bool:
            found = find(tensor, self._device_index)
            if found is None:
                return False
            if found[1] == 0:
                return True
            if kernels.is_capturing(self._state.device):
                return False
            # Triton launches kernels on the current device. If that is not the device of the state, reject the tensor.
            if self._device_index >= 0 and torch.cuda.current_device() != self._device_index:
                return False
            return self._measure(offset, found, tensor.dtype)

        return write

    def _measure(self, offset: int, found: Found, dtype: torch.dtype) -> bool:
        """Launch the measurement of elements that were found on the current device; False if they are rejected."""
        address, size, _ = found
        stream = current_stream(self._device_index)
        # Reject a tensor on another stream: a merge there could read partial rows that this stream has not written yet.
        if self._waiting and stream != self._stream:
            return False
        steps, programs = _spans(size)
        if self._used + programs > _CAPACITY:
            self.merge()
            if programs > _CAPACITY:
                return False
        self._stream = stream
        launch = self._launches.get(dtype) or self._load(dtype)
        begin = self._used
        launch(programs, stream, address, size, steps, self._address + begin * _ROW_BYTES)
        self._used = end = begin + programs
        self._waiting.append((offset, size, begin, end))
        return True

    def flush(self) -> None:
        """Measure the tensors of hooks that are not measured yet."""

    def merge(self) -> None:
        """Merge all waiting partial rows into the rows of the state."""
        if self._waiting:
            with _current(self._state):
                _merge(self._state, self._rows, *np.array(self._waiting, dtype=np.int64).T, merging=True)
            # Discard the partial rows only after the merge: if it raised, the next merge takes them.
            self.drop()

    def drop(self) -> None:
        """Discard all waiting partial rows."""
        self._waiting, self._used = [], 0

    def direct_writer(self, offset: int) -> Callable[[Tensor], bool]:
        """As `writer`, but launched by the compiled part if that works."""
        return self.writer(offset)

    def counting_writer(self, in_python: Callable[[Tensor], bool], offset: int, histogram: int) -> Callable[[Tensor], bool]:
        """As `in_python`, but launched by the compiled part if that works.

        Args:
            in_python: merges a tensor into a row and its histogram, or rejects the tensor and returns False.
            offset: of the row in the state.
            histogram: the offset of the histogram.
        """
        return in_python

    def row_writer(self, row: int, offset: int, fallback: FallbackWriter) -> Callable[[Tensor], None]:
        """A function that measures a tensor for a row, or passes the tensor to the fallback."""
        return DirectWriter(self.writer(offset), row, fallback)

    def unit_writer(
        self, row: int, offset: int, store: Store, in_python: Callable[[Tensor], bool], fallback: FallbackWriter
    ) -> Callable[[Tensor], None]:
        """A function that measures a tensor for a row and its units, or passes the tensor to the fallback.

        Args:
            row: the index of the row.
            offset: of the row in the state.
            store: keeps the units.
            in_python: merges a tensor into the row and its units, or rejects the tensor and returns False.
            fallback: takes the other tensors.
        """
        return DirectWriter(in_python, row, fallback)

    def _load(self, dtype: torch.dtype) -> Launch:
        launch = self._launches[dtype] = launcher(triton_code.measure_one, self._device_index, **self._constants(dtype))
        return launch

    def _constants(self, dtype: torch.dtype) -> dict[str, Any]:
        return {"CODE": CODES[dtype], "MAGNITUDES": self._magnitudes, **_BLOCKS}


def attempt(device: torch.device) -> None:
    """Measure a tensor of one element, so that a broken installation of Triton raises before it is chosen.

    Raises:
        RuntimeError: TRITON_INTERPRET is set. Triton may raise any other exception.
    """
    # Triton's interpreter would read host memory at addresses of the device.
    if knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set, and the interpreter reads no memory of a device")
    measure(torch.ones(1, device=device))


def _spans(size: int) -> tuple[int, int]:
    """The number of blocks in a span, and the number of spans, for a tensor of `size` elements."""
    blocks = -(-size // BLOCK)
    steps = _steps(blocks)
    return steps, -(-blocks // steps)


def _steps(blocks: int) -> int:
    """The number of blocks in a span, if there are so many blocks in all.

    Half of the programs are enough while a span of them has at most half of _MOST_BLOCKS: fewer programs begin, and each reads
    more. On an H200, 8 to 32 MB in bfloat16 take 6 to 19 % less time than with all programs. More blocks than that take less
    time with all programs. `blocks_of_span` in device.cpp and `measure_eight` in triton_code.py divide in the same way.
    """
    steps = -(-blocks // -(-_PROGRAMS // 2))
    return min(-(-blocks // _PROGRAMS), _MOST_BLOCKS) if steps > _MOST_BLOCKS // 2 else max(1, steps)


class TensorList:
    """A list of tensors of one dtype, which one launch measures; see `lists_of`.

    Args:
        code: of the dtype.

    Attributes:
        positions: of the tensors among those that were given.
        steps: the number of blocks in a span.
        total: the number of programs.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        self.positions: list[int] = []
        self.found: list[Found] = []
        # The tensors to subtract; the measured tensors themselves if nothing is subtracted.
        self.less: list[Found] = []

    def spread(self) -> None:
        """Divide the elements among programs, each of which writes one partial row."""
        self.sizes = np.array([size for _, size, _ in self.found], dtype=np.int64)
        blocks = -(-self.sizes // BLOCK)
        self.steps = _steps(int(blocks.sum()))
        self.programs = -(-blocks // self.steps)
        self.ends = np.cumsum(self.programs)
        self.total = int(self.ends[-1])

    def table(self) -> tuple[list[_Integers], _Integers]:
        """Addresses, sizes, first programs and addresses of the subtracted tensors; then the tensor of each program."""
        addresses = np.array([address for address, _, _ in self.found], dtype=np.int64)
        others = np.array([address for address, _, _ in self.less], dtype=np.int64)
        tensor_of_program = np.repeat(np.arange(len(addresses)), self.programs)
        return [addresses, self.sizes, self.ends - self.programs, others], tensor_of_program

    def measure(self, rows: Tensor, begin: int, magnitudes: bool, paired: bool) -> None:
        """Write the partial rows into `rows`, from index `begin` on."""
        of_tensors, of_programs = self.table()
        table = to_device(np.concatenate([*of_tensors, of_programs]), rows.device)
        integers = (table.data_ptr(), len(self.sizes), self.steps, rows.data_ptr() + begin * _ROW_BYTES)
        constants = {"CODE": self.code, "MAGNITUDES": magnitudes, "PAIRED": paired, **_BLOCKS}
        _launch(triton_code.measure_list, self.total, rows, *integers, **constants)


def _measure_lists(out: Tensor, offsets: _Integers, lists: list[TensorList], magnitudes: bool, paired: bool) -> None:
    for each in lists:
        each.spread()
    rows = torch.empty(sum(each.total for each in lists) or 1, MOMENTS, dtype=torch.float64, device=out.device)
    firsts, ends, begin = [], [], 0
    for each in lists:
        if each.total:
            each.measure(rows, begin, magnitudes, paired)
        ends.append(begin + each.ends)
        firsts.append(ends[-1] - each.programs)
        begin += each.total
    targets = offsets[[position for each in lists for position in each.positions]]
    sizes = np.concatenate([each.sizes for each in lists])
    _merge(out, rows, targets, sizes, np.concatenate(firsts), np.concatenate(ends), merging=False)


def _merge(
    out: Tensor, rows: Tensor, targets: _Integers, sizes: _Integers, firsts: _Integers, ends: _Integers, *, merging: bool
) -> None:
    """Merge partial rows into rows of `out`.

    Args:
        out: contiguous, float64; written.
        rows: the partial rows, float64 [partial rows, 9].
        targets: the index in `out` at which the row of each tensor begins; several tensors may have the same row.
        sizes: the number of elements of each tensor.
        firsts: the index of the first partial row of each tensor.
        ends: the index after the last partial row of each tensor.
        merging: whether to merge with the present rows of `out`; if not, they are overwritten.
    """
    distinct, index, counts = np.unique(targets, return_inverse=True, return_counts=True)
    order = np.argsort(index, kind="stable")
    elements = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(elements, index, sizes)
    table = to_device(np.concatenate([distinct, elements, [0], np.cumsum(counts), firsts[order], ends[order]]), out.device)
    integers = (table.data_ptr(), len(distinct), len(targets), rows.data_ptr(), out.data_ptr(), int(merging))
    _launch(triton_merge.merge_rows, len(distinct), out, *integers, CHUNK=CHUNK)


def _launch(kernel: Any, programs: int, out: Tensor, *integers: int, **constants: Any) -> None:
    device = out.get_device()
    launcher(kernel, device, **constants)(programs, current_stream(device), *integers)


def _current(out: Tensor) -> AbstractContextManager[Any]:
    """A context in which the device of a tensor is the current one, on which Triton launches."""
    return torch.cuda.device(out.device) if out.is_cuda else nullcontext()
