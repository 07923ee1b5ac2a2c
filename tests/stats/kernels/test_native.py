"""Features that only the compiled kernel has. `test_measuring` compares its numbers with float64."""

import struct

import pytest
import torch
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from lightning_hooks.stats.schema import MEAN
from tests.stats.kernels.agreement import DTYPES, NOT_OURS, SETS, native, normal

if native is None:
    pytest.skip("the package was installed without a compiler", allow_module_level=True)
from lightning_hooks.backends import _native
from lightning_hooks.stats.kernels import measure, measure_many


def test_subnormals_count_also_where_torch_flushes_them():
    tensor = torch.full((5000,), 1e-40)
    want = native.read(tensor)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush subnormals")
    try:
        assert native.read(tensor) == want
        assert (torch.tensor([1e-40]) * 1).item() == 0.0  # the mode for subnormals is restored
    finally:
        torch.set_flush_denormal(False)
    assert (torch.tensor([1e-40]) * 1).item() != 0.0


@pytest.mark.parametrize("size", [*range(20), 63, 64, 65, 4099])
def test_records_are_the_same_with_every_instruction_set(size):
    data = torch.arange(size).to(torch.uint8).numpy().tobytes()
    want = data.join([struct.pack("<QI", size, masked_crc32c(struct.pack("<Q", size))), struct.pack("<I", masked_crc32c(data))])
    for name in SETS:
        _native.choose_instructions(name)
        assert _native.record(data) == want, name
    _native.choose_instructions(SETS[0])


def test_what_is_left_to_the_reference():
    for tensor in NOT_OURS:
        assert native.read(tensor) is None
        assert native.read_histogram(tensor) is None
        assert native.read_many([tensor, torch.ones(2)])[0] is None
    assert native.read("no tensor") is None
    assert measure(torch.tensor([1 + 2j]).conj().imag)[MEAN] == -2.0
    assert native.read(torch.nn.Parameter(torch.ones(3))) == native.read(torch.ones(3))
    assert native.read(torch.ones(3, requires_grad=True) * 1) == native.read(torch.ones(3))


def test_instruction_sets():
    assert SETS[-1] == "baseline"
    assert _native.instructions() == SETS[0]
    assert not _native.choose_instructions("sse9")


def test_several_at_once():
    tensors = [normal(n, dtype=dtype) for n in (0, 1, 999, 70_000) for dtype in DTYPES] + [torch.ones(2, dtype=torch.int32)]
    found = native.read_many(tensors)
    assert found[:-1] == [native.read(tensor) for tensor in tensors[:-1]]
    assert found[-1] is None
    assert torch.equal(measure_many(tensors), torch.stack([measure(tensor) for tensor in tensors]))
    assert measure_many([]).shape == (0, 9)
