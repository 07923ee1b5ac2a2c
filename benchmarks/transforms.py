"""Transforms beside what torch offers, and beside a loop over the tensors.

python -m benchmarks.transforms
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import lightning_hooks.transforms as ours
from benchmarks import output
from benchmarks.repeat import repeat
from benchmarks.workloads import WORKLOADS
from lightning_hooks.transforms import ClipByGlobalNorm, Context

_CLIPPING, _EPSILON = 0.01, 1e-3


def parameters_of(letter: str) -> list[Tensor]:
    """The parameters of a workload with random gradients."""
    torch.manual_seed(0)
    parameters: list[Tensor] = list(WORKLOADS[letter].net().parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def global_norm(letter: str, seconds: float) -> dict[str, Any]:
    """`ClipByGlobalNorm` beside `clip_grad_norm_(foreach=True)`, both of which clip at every call.

    Args:
        letter: of the workload.
        seconds: for each figure.
    """
    parameters = parameters_of(letter)
    clip, context = ClipByGlobalNorm(max_norm=1.0), _context(parameters)
    return _row(
        letter,
        "ClipByGlobalNorm",
        "clip_grad_norm_(foreach=True)",
        parameters,
        lambda: clip(_gradients(parameters), context),
        lambda: clip_grad_norm_(parameters, 1.0, foreach=True),
        seconds,
    )


def adaptive(letter: str, seconds: float) -> dict[str, Any]:
    """`AdaptiveClip` beside the loop over the parameters that papers print.

    Args:
        letter: of the workload.
        seconds: for each figure.
    """
    kind = getattr(ours, "AdaptiveClip", None)
    if kind is None:
        return {"workload": letter, "transform": "AdaptiveClip", "skipped": "this version has no AdaptiveClip"}
    parameters = parameters_of(letter)
    clip, context = kind(), _context(parameters)
    return _row(
        letter,
        "AdaptiveClip",
        "per-tensor loop",
        parameters,
        lambda: clip(_gradients(parameters), context),
        lambda: _loop(parameters),
        seconds,
    )


def _row(
    letter: str,
    transform: str,
    beside: str,
    parameters: list[Tensor],
    mine: Callable[[], Any],
    theirs: Callable[[], Any],
    seconds: float,
) -> dict[str, Any]:
    kept = [gradient.clone() for gradient in _gradients(parameters)]

    def restore() -> None:
        torch._foreach_copy_(_gradients(parameters), kept)

    # In turn, so that both see the same machine: five tries each, and the best call of all.
    taken = [(repeat(mine, seconds / 5, before=restore), repeat(theirs, seconds / 5, before=restore)) for _ in range(5)]
    return {
        "workload": letter,
        "tensors": len(parameters),
        "transform": transform,
        "beside": beside,
        "ms": min(pair[0].best for pair in taken) * 1e3,
        "beside_ms": min(pair[1].best for pair in taken) * 1e3,
    }


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _context(parameters: list[Tensor]) -> Context:
    # As at stage `step`: the gradients are the transform's to overwrite.
    return Context(params=list(parameters), names=[str(i) for i in range(len(parameters))], owned=True)


@torch.no_grad()
def _loop(parameters: list[Tensor]) -> None:
    """Adaptive gradient clipping as in the authors' code: unit-wise norms, one parameter after the other."""
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None
        dims = tuple(range(1, parameter.dim()))
        limit = _norm(parameter, dims).clamp(min=_EPSILON) * _CLIPPING
        norm = _norm(gradient, dims)
        gradient.copy_(torch.where(norm > limit, gradient * (limit / norm.clamp(min=1e-6)), gradient))


def _norm(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    norm: Tensor = tensor.norm(2, dim=dims, keepdim=True) if dims else tensor.norm(2)
    return norm


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--workloads", default="A,B,C,D")
    parser.add_argument("--seconds", type=float, default=5.0 if output.full() else 0.5)
    options = parser.parse_args(arguments)
    letters = options.workloads.split(",")
    rows = [function(letter, options.seconds) for function in (global_norm, adaptive) for letter in letters]
    for row in rows:
        print(
            row["workload"],
            row["transform"],
            row.get("skipped") or f"{row['ms']:.2f} ms, {row['beside_ms']:.2f} ms",
            flush=True,
        )
    output.write(options.name or "transforms", rows, options.out)


if __name__ == "__main__":
    main()
