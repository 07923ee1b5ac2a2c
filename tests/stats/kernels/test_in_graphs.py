"""Operations that measure within compiled code: what the compiler makes of them. Numbers are in triton_checks."""

import pytest
import torch

from tests.fake_cuda import code_for_cuda, in_graphs

pytest.importorskip("triton")


def test_the_compiler_launches_their_kernels_within_cuda_graphs():
    from lightning_hooks.stats.kernels import in_graphs as operations

    def compute(x, w, place):
        y = torch.relu(x) + 1
        operations.measure(y, place, False)
        operations.measure(torch.sin(y).t(), place, False)
        probe = operations.measure_grad(y * w, place, False)
        return y * w, probe

    code = code_for_cuda(compute, torch.randn(64, 64), torch.randn(64, 64), torch.zeros(2, dtype=torch.int64))
    within = in_graphs(code)
    assert within.count("measure_at_place_0.run(") == 3  # one kernel for all tensors of a dtype
    assert within.count("merge_at_place_") == 3
    assert "torch.ops" not in within and "partition_1" not in code
    # Nothing is copied: neither a place that a kernel changes, nor a transposed tensor.
    assert within.count("triton_poi_fused") == 1 and within.count("float64)") == 1
