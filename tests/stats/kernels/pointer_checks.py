"""Checks of launches from C++ through pointers, which lead to Triton's interpreter (test_triton.py).

Triton decides at its import whether it interprets kernels, so that takes a process of its own:

TRITON_INTERPRET=1 python -m tests.stats.kernels.pointer_checks pointers
"""

import ctypes

import torch

from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.units import Units
from lightning_hooks.stats.kernels import cuda, cuda_units, on_cuda, queued_rows, queued_units, reference
from lightning_hooks.stats.kernels.driver import Driver
from lightning_hooks.stats.kernels.handles import Handle
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import neutral
from lightning_hooks.stats.table import Table
from lightning_hooks.stats.units import reference as units_reference
from lightning_hooks.stats.units.spec import UnitSpec
from tests.stats._fallback import KeepsAll
from tests.stats.kernels.interpreting import run
from tests.stats.kernels.triton_checks import BLOCK, DTYPES, INF, NAN, normal, same

STREAM = 11


class Interpreter:
    """A driver whose function for launches passes the parameters to the interpreter, by the handle of the kernel.

    Attributes:
        driver: the addresses of its functions.
        launches: the name, the stream, the programs and the parameters of each launch.
    """

    def __init__(self):
        self._kernels, self.launches = [], []
        pointer, unsigned = ctypes.c_void_p, ctypes.c_uint
        kinds = (
            ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[unsigned] * 7, pointer, ctypes.POINTER(pointer), pointer),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(pointer)),
            ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.POINTER(ctypes.c_int)),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(pointer)),
        )
        functions = (self._launch, self._context, self._is_capturing, self._stream)
        self._functions = [kind(function) for kind, function in zip(kinds, functions, strict=True)]
        self.driver = Driver(*(ctypes.cast(each, pointer).value for each in self._functions), device_type=1)

    def handle(self, kernel, device, **constants):
        """As `launching.handle`."""
        self._kernels.append((kernel, constants))
        return Handle(len(self._kernels), 0, 128, kernel)

    def _launch(self, function, x, y, z, threads, threads_y, threads_z, shared, stream, parameters, extra):
        kernel, constants = self._kernels[function - 1]
        given = len(kernel.arg_names) - len(constants)
        numbers = [ctypes.c_int64.from_address(parameters[i]).value for i in range(given)]
        self.launches.append((kernel.fn.__name__, stream, x, numbers))
        kernel[(x,)](*numbers, **constants)
        return 0

    def _context(self, out):
        out[0] = 5
        return 0

    def _is_capturing(self, stream, out):
        out[0] = 0
        return 0

    def _stream(self, kind, index, out):
        out[0] = STREAM
        return 0


def installed():
    """The driver, for tables in host memory."""
    found = Interpreter()
    kernels.on_device = lambda tensor: on_cuda
    on_cuda.driver_of = lambda device: found.driver
    for module in (queued_rows, queued_units):
        module.handle = found.handle
    for module in (cuda, queued_rows, queued_units):
        module.current_stream = lambda device: STREAM
    return found


def pointers():
    """C++ launches the kernel of a tensor from a hook, and divides the tensor as Python does."""
    interpreter = installed()
    limits, cuda._PROGRAMS, cuda._CAPACITY = (cuda._PROGRAMS, cuda._CAPACITY), 3, 100
    state = neutral(4).flatten()
    rows = queued_rows.QueuedRows(state, interpreter.driver)
    seen = [[] for _ in DTYPES]
    for code, dtype in enumerate(DTYPES):
        for size in (2, 1, 9, 3 * BLOCK, 7 * BLOCK + 5):
            tensor = normal(size, dtype=dtype) + 3
            # The first tensor loads the kernel.
            assert rows.launch(9 * code, tensor) if size != 2 else rows.writer(9 * code)(tensor)
            seen[code].append(tensor)
    cuda._PROGRAMS, cuda._CAPACITY = limits
    name, stream, programs, numbers = interpreter.launches[-1]
    assert len(interpreter.launches) == 16 and (name, stream, programs) == ("measure_one", STREAM, 2)
    assert numbers[1:3] == [7 * BLOCK + 5, 4]
    rows.merge()
    for code, tensors in enumerate(seen):
        same(state.view(4, 9)[code], reference.measure(torch.cat(tensors)), "through pointers")


class Adds(KeepsAll):
    """Measures in Python."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def __call__(self, row, tensor):
        super().__call__(row, tensor)
        self.table.measuring.add(row, Measurement(tensor))


def units_through_pointers():
    """C++ launches the three kernels of a tensor with units: columns, runs and short runs, each in several parts."""
    interpreter = installed()
    cuda_units._PROGRAMS = 16
    shapes = ((70, 130), (5, 6, 300), (70, 6, 3))
    names = ("measure_columns", "measure_runs", "measure_columns")
    for dtype in DTYPES:
        rows = range(len(shapes))
        kept = AccumulatorRows(Units(), (*rows,), {row: (torch.nn.Identity(), UnitSpec(axis=1)) for row in rows})
        table = Table(len(shapes), [kept])
        table.expect({"units": {*rows}})
        fallback = Adds(table)
        for row, (shape, name) in enumerate(zip(shapes, names, strict=True)):
            write = table.writer(row, fallback, {"units"})
            tensors = [normal(*shape, dtype=dtype, seed=seed).relu() for seed in range(4)]
            tensors[2].view(-1)[[3, 500]] = torch.tensor([NAN, -INF], dtype=dtype)
            for tensor in tensors[:2]:  # the first one determines the axis, the second one may load kernels
                write(tensor)
            before = len(interpreter.launches)
            for tensor in tensors[2:]:
                write(tensor)
            launched = interpreter.launches[before:]
            assert [each[:2] for each in launched] == [(kernel, STREAM) for kernel in ("measure_one", name, "merge_parts")] * 2
            assert launched[-1][3][1] > 1, "one part only"
            whole = torch.cat(tensors)
            same(table.moments[row], reference.measure(whole), (dtype, shape))
            wanted, sizes = units_reference.measure(whole, 1), units_reference.measure(whole.abs(), 1)
            known = torch.isfinite(wanted)
            assert ((table.units[row] - wanted).abs() <= 1e-6 * sizes)[known].all(), (dtype, shape)
            torch.testing.assert_close(table.units[row][~known], wanted[~known], equal_nan=True)
        assert len(fallback.came) == len(shapes)


CHECKS = {check.__name__: check for check in (pointers, units_through_pointers)}

if __name__ == "__main__":
    run(CHECKS)
