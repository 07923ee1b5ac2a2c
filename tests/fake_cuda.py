"""The code that torch's compiler writes for a CUDA device, on a machine without one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def code_for_cuda(function: Callable[..., Any], *given: Tensor) -> str:
    """The code of a function with CUDA graphs. What is in a graph is in functions `partition_0`, …

    Args:
        function: as autograd leaves it, such as the forward of a module without gradients.
        given: its arguments in host memory. They count as tensors on a device, except for marks.
    """
    from torch._inductor import config, debug
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.virtualized import V

    mode = FakeTensorMode()
    with mode:
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu" if is_mark(x) else "cuda") for x in given]
        graph = make_fx(function, select_decomp_table(), tracing_mode="fake")(*fakes)
    h100 = DeviceProperties(
        type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, warp_size=32,
    )  # fmt: skip
    properties = mock.Mock(major=9, minor=0, multi_processor_count=132, warp_size=32)
    with ExitStack() as stack:
        for name, value in {
            "torch.cuda.is_available": True,
            "torch.cuda.current_device": 0,
            "torch.cuda.device_count": 1,
            "torch.cuda.get_device_capability": (9, 0),
            "torch.cuda.get_device_properties": properties,
            "torch.utils._triton.triton_hash_with_backend": "fake",
        }.items():
            stack.enter_context(mock.patch(name, lambda *_, value=value: value))
        stack.enter_context(mock.patch.object(DeviceProperties, "create", lambda _: h100))
        stack.enter_context(config.patch({"triton.cudagraphs": True, "graph_partition": True}))
        stack.enter_context(mode)
        lowering = GraphLowering(graph, example_inputs=fakes)
        stack.enter_context(V.set_fake_mode(mode))
        stack.enter_context(V.set_graph_handler(lowering))
        stack.enter_context(V.set_debug_handler(debug.DebugContext()))
        lowering.run(*fakes)
        code: Any = lowering.codegen()[0]
    return str(getattr(code, "value", code))


def is_mark(tensor: Tensor) -> bool:
    return tensor.ndim == 0 and tensor.dtype == torch.int64


def in_graphs(code: str) -> str:
    """The part of a code that CUDA graphs replay."""
    assert "def partition_0(" in code
    return code[code.index("def partition_0(") : code.index("class Runner")]
