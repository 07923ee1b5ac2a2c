"""Ready-made hooks that a rule can name; each works for hooks of every kind."""

from __future__ import annotations

import pdb
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.tensor_kinds import elements

_ARGUMENTS: Final = {
    "forward_pre": ("input",),
    "forward": ("input", "output"),
    "full_backward_pre": ("grad_output",),
    "full_backward": ("grad_input", "grad_output"),
    "input_grad": ("input_grad",),
    "output_grad": ("output_grad",),
    "node_pre": ("grad_outputs",),
    "node": ("grad_inputs", "grad_outputs"),
    "param_grad": ("grad",),
    "post_accumulate_grad": ("param",),
}

Report = Callable[[str, str, list[tuple[str, Any]]], None]


class ReadyCall:
    """A hook for every kind; a rule passes the kind and the name of the target.

    Args:
        report: called with the name, the kind, and the hook's arguments, each with a label.
    """

    named = True

    def __init__(self, report: Report) -> None:
        self._report = report
        self.__doc__ = report.__doc__
        self.__qualname__ = report.__name__.lstrip("_")

    def for_kind(self, kind: str) -> Callable[..., None]:
        """The hook for one kind, with the name of the target as its first argument."""
        labels = _ARGUMENTS.get(kind, ())

        def call(name: str, *args: Any) -> None:
            values = [value for value in args if not isinstance(value, (nn.Module, torch.optim.Optimizer))]
            shown = labels
            # With `with_kwargs=True` the hook also gets keyword arguments, after the positional ones.
            if labels[:1] == ("input",) and len(values) > len(labels):
                shown = ("input", "kwargs", *labels[1:])
            shown = (*shown, *(f"argument {i}" for i in range(len(shown), len(values))))
            self._report(name, kind, list(zip(shown, values, strict=False)))

        return call

    def __call__(self, name: str, *args: Any) -> None:
        """Report on the arguments of a hook of any kind."""
        self.for_kind("")(name, *args)

    def __repr__(self) -> str:
        """The name of the hook."""
        return self.__qualname__


def _print_shapes(name: str, kind: str, values: list[tuple[str, Any]]) -> None:
    """Print the shape of every tensor that the hook gets."""
    print(f"{name} {kind}: {', '.join(f'{label} {_shapes(value)}' for label, value in values)}")


def _print_stats(name: str, kind: str, values: list[tuple[str, Any]]) -> None:
    """Print mean, standard deviation, minimum, maximum and the number of non-finite elements of every tensor."""
    for label, value in values:
        for tensor in _floating(value):
            read = _elements(tensor)
            if read is None:
                print(f"{name} {kind} {label}: shape {_shape(tensor)}, no readable elements")
                continue
            stored, zeros = read
            count = stored.numel() + zeros
            if count == 0:
                print(f"{name} {kind} {label}: empty {_shape(tensor)}")
                continue
            mean = stored.sum() / count
            std = (((stored - mean).square().sum() + zeros * mean.square()) / count).sqrt()
            distinct = torch.cat([stored, stored.new_zeros(min(zeros, 1))])
            nonfinite = int(stored.numel() - torch.isfinite(stored).sum())
            print(
                f"{name} {kind} {label}: shape {_shape(tensor)}, mean {mean:.4g}, "
                f"std {std:.4g}, min {distinct.min():.4g}, max {distinct.max():.4g}, non-finite {nonfinite}"
            )


def _breakpoint_if_nonfinite(name: str, kind: str, values: list[tuple[str, Any]]) -> None:
    """Start the debugger if a tensor that the hook gets contains NaN or infinity."""
    for label, value in values:
        for tensor in _floating(value):
            read = _elements(tensor)
            if read is not None and not torch.isfinite(read[0]).all():
                print(f"{name} {kind}: {label} of shape {_shape(tensor)} holds NaN or infinity")
                pdb.set_trace()


print_shapes = ReadyCall(_print_shapes)
print_stats = ReadyCall(_print_stats)
breakpoint_if_nonfinite = ReadyCall(_breakpoint_if_nonfinite)


def save_to(target: MutableMapping[str, Any]) -> ReadyCall:
    """A hook that saves detached copies of its tensors from the last call, by the name of the target.

    Args:
        target: the mapping to fill: per name the output of a `forward` hook, else the first tensor or nested tensors.

    Example:
        >>> from lightning_hooks import CustomHooks, Hook, instrument
        >>> maps = {}
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
        >>> with instrument(model, CustomHooks([Hook(save_to(maps), kind="forward", modules="0")])):
        ...     _ = model(torch.zeros(1, 1, 5, 5))
        >>> maps["0"].shape
        torch.Size([1, 2, 3, 3])
    """

    def save_to(name: str, kind: str, values: list[tuple[str, Any]]) -> None:
        """Save detached copies of the hook's tensors."""
        labelled = dict(values)
        value = labelled["output"] if kind == "forward" else values[0][1]
        copies = [tensor.detach().clone() for tensor in tensors_in(value)]
        target[name] = copies[0] if len(copies) == 1 else tuple(copies)

    return ReadyCall(save_to)


def _shapes(value: Any) -> str:
    if isinstance(value, Tensor):
        return _shape(value)
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_shapes(item) for item in value)}]"
    return f"[{', '.join(map(_shape, tensors_in(value)))}]"


def _shape(tensor: Tensor) -> str:
    try:
        return str(tuple(tensor.shape))
    # Torch raises for a nested tensor of strided layout, whose components have different shapes.
    except RuntimeError:
        return f"({tensor.size(0)}, …)"


def _elements(tensor: Tensor) -> tuple[Tensor, int] | None:
    """The stored elements of a tensor, flat and in float64, and the number of its other zeros; None if it cannot be read."""
    try:
        stored = elements(tensor)
        return None if stored is None else (stored[0].double().flatten(), stored[1])
    except (RuntimeError, TypeError):
        return None


def _floating(value: Any) -> Iterator[Tensor]:
    return (tensor for tensor in tensors_in(value) if tensor.is_floating_point() or tensor.is_complex())
