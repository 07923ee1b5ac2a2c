"""The code that torch's compiler writes for a CUDA device, on a machine without one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import make_fx


class _Done(Exception):
    """The code is written."""


def code_for_cuda(function: Callable[..., Any], *given: Tensor) -> str:
    """The code of a function with CUDA graphs. What is in a graph is in functions `partition_0`, …

    Args:
        function: as autograd leaves it, such as the forward of a module without gradients.
        given: its arguments in host memory. They count as tensors on a device, except for marks.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils._triton import has_triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    mode, codes = FakeTensorMode(), []
    with mode:
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu" if is_mark(x) else "cuda") for x in given]
        graph = make_fx(function, tracing_mode="fake")(*fakes)

    def stop(lowering: Any) -> None:
        code = lowering.codegen()[0]
        codes.append(str(getattr(code, "value", code)))
        raise _Done

    def copy(self: Tensor, other: Tensor, non_blocking: bool = False) -> Any:
        return torch.ops.aten.copy_.default(self, other)  # without a guard for the device

    h100 = DeviceProperties(
        type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, warp_size=32,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "torch.cuda.is_available": True,
        "torch.cuda.current_device": 0,
        "torch.cuda.device_count": 1,
        "torch.cuda.synchronize": None,
        "torch.cuda.get_device_capability": (9, 0),
        "torch.cuda.get_device_properties": mock.Mock(major=9, minor=0, multi_processor_count=132, warp_size=32),
        "torch.cuda.get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "torch.cuda.set_rng_state": None,
        "torch.cuda._exchange_device": 0,
        "torch.cuda._maybe_exchange_device": 0,
        "torch.utils._triton.triton_hash_with_backend": "fake",
        # Patterns of attention are traced on the device.
        "torch._inductor.fx_passes.joint_graph.lazy_init": None,
        "torch._inductor.fx_passes.post_grad.lazy_init": None,
    }
    device = mock.Mock(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    with ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(mock.patch(name, lambda *_, value=value, **options: value))
        replaced: list[tuple[Any, str, Any]] = [
            (driver, "_default", device),
            (driver, "_active", device),
            (DeviceProperties, "create", lambda _: h100),
            (GraphLowering, "compile_to_module", stop),
            (FunctionalTensor, "copy_", copy),
            (FakeTensor, "copy_", copy),
        ]
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        options = {"triton.cudagraphs": True, "graph_partition": True, "fx_graph_cache": False, "compile_threads": 1}
        stack.enter_context(config.patch(options))
        stack.enter_context(torch.no_grad())
        # Torch keeps its first answer, which in a process that has compiled something is that there is no device.
        has_triton.cache_clear()
        stack.callback(has_triton.cache_clear)
        stack.enter_context(tracing(TracingContext(mode)))
        try:
            compile_fx(graph, fakes)
        except Exception:
            if not codes:
                raise
    return codes[0]


def is_mark(tensor: Tensor) -> bool:
    return tensor.ndim == 0 and tensor.dtype == torch.int64


def in_graphs(code: str) -> str:
    """The part of a code that CUDA graphs replay."""
    assert "def partition_0(" in code
    return code[code.index("def partition_0(") : code.index("class Runner")]
