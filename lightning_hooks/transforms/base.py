"""The base class of transforms, and the context that a transform receives with its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.saved_state import check_like


@dataclass
class Context:
    """The information that a transform gets in addition to the tensors.

    Args:
        params: the parameter behind each gradient, None if the tensor belongs to a module.
        names: the dotted name of each tensor, in the order of the tensors.
        step: the number of the step, from 0.
        owned: whether the transform may overwrite the tensors in place; False by default.
        generators: the random generators created so far, by device name.
        seed: the seed of generators created from now on; equal on all ranks that must draw the same numbers.
        state: the values that the transform keeps from step to step; keyed by tensor name if there is a value for each
            tensor. The state is saved with the checkpoint, so it must be picklable.

    A transform that `keeps_direction` may set `factor` to the number by which it has multiplied all tensors: the norms after
    the change are then calculated from the norms before, not measured.

    Example:
        >>> context = Context(names=["encoder.weight"], step=3)
        >>> context.name_of(0), context.owned
        ('encoder.weight', False)
    """

    params: list[Tensor | None] = field(default_factory=list)
    _: KW_ONLY
    names: list[str] = field(default_factory=list)
    step: int = 0
    owned: bool = False
    generators: dict[str, torch.Generator] = field(default_factory=dict)
    seed: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    skip_reason: str | None = field(default=None, init=False)
    factor: Tensor | float | None = field(default=None, init=False)

    def skip_step(self, reason: str = "a transform asked for it") -> None:
        """Skip the optimizer's step: parameters and optimizer state stay unchanged.

        The rules after this one still run; then all gradients of the optimizer become None. Only with `when="step"`.

        Args:
            reason: the reason in a few words; the first reason of a step is kept.

        Example:
            >>> context = Context()
            >>> context.skip_step("a norm above 10")
            >>> context.skip_reason
            'a norm above 10'
        """
        if self.skip_reason is None:
            self.skip_reason = reason

    def name_of(self, index: int) -> str:
        """The name of the tensor at `index` for messages; without names, its position in the list.

        Example:
            >>> Context().name_of(2)
            'tensor 2'
        """
        return self.names[index] if index < len(self.names) else f"tensor {index}"

    def generator_for(self, device: torch.device) -> torch.Generator:
        """The random generator of a device, created at its first use.

        Args:
            device: the device on which the numbers are drawn.

        Example:
            >>> context = Context(seed=7)
            >>> generator = context.generator_for(torch.device("cpu"))
            >>> generator is context.generator_for(torch.device("cpu")), generator.initial_seed()
            (True, 7)
        """
        key = str(device)
        if key not in self.generators:
            # Number the generators by their creation, not by the device's index: replicas on different devices must draw
            # the same numbers, while two devices of one process must draw different numbers. Torch takes seeds below 2**64.
            seed = (self.seed + len(self.generators)) % 2**64
            self.generators[key] = torch.Generator(device).manual_seed(seed)
        return self.generators[key]


class Transform:
    """Base class: takes tensors and returns tensors of the same shape, dtype, device and layout.

    Subclass it to write your own. The result replaces the tensors. Unless `context.owned` is set, a transform must not
    change its arguments in place, because other parts of the graph may share their memory.

    Example:
        >>> class Negate(Transform):
        ...     def __call__(self, tensors, context):
        ...         return [-tensor for tensor in tensors]
        >>> Negate()([torch.tensor([1.0, -2.0])], Context())
        [tensor([-1.,  2.])]
    """

    needs_all: ClassVar[bool] = False
    """Needs all matched tensors in one call; refused where tensors arrive one at a time."""

    repairs_nonfinite: ClassVar[bool] = False
    """Replaces NaN or infinity by numbers; refused where that would hide an overflow from a loss scaler."""

    random: ClassVar[bool] = False
    """Draws random numbers; it must draw them from `Context.generator_for`."""

    needs_params: ClassVar[bool] = False
    """Needs the parameter behind each gradient (`Context.params`); refused on the tensors of modules.

    Sharded parameters are gathered only for a transform with this flag; reading them without the flag is an error.
    """

    needs_step: ClassVar[bool] = False
    """Acts on the optimizer's step as a whole; refused anywhere but with `when="step"`."""

    on_activations: ClassVar[bool] = True
    """May be applied to activations; if False, refused on activations."""

    elementwise: ClassVar[bool] = False
    """Changes each element independently of all other elements, so each rank can apply it to its shard of a tensor."""

    keeps_direction: ClassVar[bool] = False
    """Multiplies each tensor by one number that is not negative; the numbers of different tensors may differ. Reports then
    calculate the cosine from the norms, without a copy of the tensors before the change."""

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """The tensors that replace `tensors`, in the same order.

        Args:
            tensors: any mix of shapes, dtypes and devices; may be empty.
            context: further information about the tensors.

        Raises:
            NotImplementedError: the subclass does not define `__call__`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(tensors, context)")

    def initial_state(self) -> dict[str, Any]:
        """What `Context.state` holds before the first call; must be picklable. Nothing by default."""
        return {}

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """Raise if this transform cannot continue from a state in a checkpoint; it then starts again, with a warning.

        By default each value must be of the same kind as in `initial_state`.

        Args:
            state: the state in the checkpoint, the next `Context.state`.
            params: the parameters of the rule by name; empty for a rule on modules.

        Raises:
            ValueError: the message names the key and says what would be right.

        Example:
            >>> class Counting(Transform):
            ...     def initial_state(self):
            ...         return {"calls": 0}
            >>> Counting().check_state({"calls": "none"}, {})
            Traceback (most recent call last):
            lightning_hooks.saved_state.DamagedState: state['calls'] must be a number, got 'none'
        """
        check_like(state, self.initial_state(), "state")
