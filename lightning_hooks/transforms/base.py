"""What a transform is, and what it is told about the tensors it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass
class Context:
    """What a transform may know besides the tensors themselves.

    Args:
        params: the parameter behind each gradient, None where the tensor belongs to a module.
        names: the dotted name of each tensor, in the order of the tensors.
        step: the number of the step, from 0.
        owned: whether the tensors may be overwritten in place; False by default.
        generators: the random generators made so far, by the name of their device.
        seed: the seed of generators made from now on; the same on every rank that must draw the same numbers.
        state: what this transform keeps from step to step, by the name of the tensor where it keeps something for each;
            saved with the checkpoint, so it must be picklable.
        process_group: the processes that hold shards of the same tensors; None on a single process.

    A transform that `keeps_direction` may set `factor` to the number by which it has multiplied all tensors: its report then
    follows from what the tensors were.

    Example:
        >>> context = Context(names=["encoder.weight"], step=3)
        >>> context.name_of(0), context.owned
        ('encoder.weight', False)
    """

    params: list[Tensor | None] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    step: int = 0
    owned: bool = False
    generators: dict[str, torch.Generator] = field(default_factory=dict)
    seed: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    process_group: Any = None
    skip_reason: str | None = field(default=None, init=False)
    factor: Tensor | float | None = field(default=None, init=False)

    def skip_step(self, reason: str = "a transform asked for it") -> None:
        """Ask that the optimizer's step does not happen: parameters and optimizer state stay as they are.

        The rules after this one still run; then all gradients of the optimizer become None. At stage `step` only.

        Args:
            reason: why, in a few words; the first reason of a step counts.

        Example:
            >>> context = Context()
            >>> context.skip_step("a norm above 10")
            >>> context.skip_reason
            'a norm above 10'
        """
        if self.skip_reason is None:
            self.skip_reason = reason

    def name_of(self, index: int) -> str:
        """How a message names the tensor at `index`; its place in the list where no names were given.

        Example:
            >>> Context().name_of(2)
            'tensor 2'
        """
        return self.names[index] if index < len(self.names) else f"tensor {index}"

    def generator_for(self, device: torch.device) -> torch.Generator:
        """The random generator of a device, made at its first use.

        Args:
            device: where the numbers will be drawn.

        Example:
            >>> context = Context(seed=7)
            >>> generator = context.generator_for(torch.device("cpu"))
            >>> generator is context.generator_for(torch.device("cpu")), generator.initial_seed()
            (True, 7)
        """
        key = str(device)
        if key not in self.generators:
            # Counted, not taken from the device's index: replicas on different devices must draw the same numbers,
            # while two devices of one process must not repeat each other.
            self.generators[key] = torch.Generator(device).manual_seed(self.seed + len(self.generators))
        return self.generators[key]


class Transform:
    """Tensors in, tensors of the same shape, dtype, device and layout out; subclass it to write your own.

    The result takes the tensors' place. Unless `context.owned` is set, the tensors given must not be changed in place:
    other parts of the graph may share their memory.

    Example:
        >>> class Negate(Transform):
        ...     def __call__(self, tensors, context):
        ...         return [-tensor for tensor in tensors]
        >>> Negate()([torch.tensor([1.0, -2.0])], Context())
        [tensor([-1.,  2.])]
    """

    needs_all: ClassVar[bool] = False
    """Must see all matched tensors together; refused where they arrive one at a time."""

    repairs_nonfinite: ClassVar[bool] = False
    """Turns NaN or infinity into numbers; refused where that would hide an overflow from a loss scaler."""

    random: ClassVar[bool] = False
    """Draws random numbers, from `Context.generator_for` only."""

    needs_params: ClassVar[bool] = False
    """Needs the parameter behind each gradient (`Context.params`); refused on the tensors of modules.

    Sharded parameters are gathered only for a transform that sets it; one that reads them without it is an error.
    """

    needs_step: ClassVar[bool] = False
    """Acts on the optimizer's step as a whole; refused anywhere but at stage `step`."""

    on_activations: ClassVar[bool] = True
    """Means something on activations too; where False, refused there."""

    elementwise: ClassVar[bool] = False
    """Treats each element by itself, whatever the others are: of a sharded tensor it can be given the parts."""

    keeps_direction: ClassVar[bool] = False
    """Multiplies each tensor as a whole by a number that is not negative, each by another one if need be: reports then take
    the cosine from the norms, without a copy of what is overwritten."""

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """The tensors that take the place of `tensors`, in the same order.

        Args:
            tensors: any mix of shapes, dtypes and devices; may be empty.
            context: what else is known about them.

        Raises:
            NotImplementedError: where a subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(tensors, context)")

    def initial_state(self) -> dict[str, Any]:
        """What `Context.state` holds before the first call; must be picklable. Nothing by default."""
        return {}
