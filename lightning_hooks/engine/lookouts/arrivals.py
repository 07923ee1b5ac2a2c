"""The base of lookouts that follow the gradients of optimizers through the first steps: arrivals, and steps that use them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar, Final
from weakref import WeakMethod, ref

from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.engine.recording.source_lines import user_line
from lightning_hooks.hooks import Handles, HookSwitch, Listening, OurHook
from lightning_hooks.hooks.autograd import names
from lightning_hooks.hooks.listening import After, Listener
from lightning_hooks.tensor_kinds import without_subclass

LEAST: Final = 3
"""The number of steps at which a fault of the order must be seen: a loop may begin in the middle of an accumulation."""
_BATCHES: Final = 16
"""The number of batches for each step that is to be looked at; then the lookout ends all the same."""
_MOST: Final = 4
"""The number of parameters of an optimizer that are followed."""


class State:
    """The state of a gradient on the host: which object, and how often its memory has been written to. No number is read.

    Args:
        gradient: None if there is none.
    """

    __slots__ = ("_gradient", "_version")

    def __init__(self, gradient: Tensor | None) -> None:
        self._gradient = gradient
        self._version = 0 if gradient is None else gradient._version

    def is_that_of(self, gradient: Tensor | None) -> bool:
        """Whether a gradient is this one, and nobody has written to it since."""
        return gradient is self._gradient and (gradient is None or gradient._version == self._version)


class ArrivalLookout(Lookout):
    """Follows the gradients of a few parameters of each optimizer through the first steps.

    A step of the run without one of an optimizer does not count: in manual optimization each batch of an accumulation is one.

    Attributes:
        steps: the number of first steps that are looked at.
        around: the code around the model.
        of: the number of the optimizer, by the ids of the parameters that are followed.
        made: how often each optimizer has stepped with gradients that had arrived, by its number.
    """

    reads_updates = True
    steps: ClassVar[int] = 12

    def __init__(self, surroundings: Surroundings) -> None:
        self.around = surroundings
        self.of: dict[int, int] = {}
        self.made: dict[int, int] = {}
        self._begun = self._looked = 0
        self._has_stepped = False
        self._listening: list[Listening] = []

    def calls(self) -> Iterable[Listening]:
        """What listens to functions of torch while the steps are looked at, also between batches."""
        return ()

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        for listening in self.calls():
            self._listening.append(handles.keep(listening))
            listening.start()

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return type(self).__name__ if stage == "train" and not self._is_done else None

    @property
    def _is_done(self) -> bool:
        return self._looked >= self.steps or self._begun >= self.steps * _BATCHES

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._begun += 1

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        for number, parameters in self.around.parameters():
            known = [each for each in parameters if not is_lazy(each)]
            for parameter in known[:: max(1, len(known) // _MOST)][:_MOST]:
                self.of[id(parameter)] = number
                with without_subclass():
                    handles.register(parameter.register_hook, _Before(self, parameter, switch))
                    handles.register(parameter.register_post_accumulate_grad_hook, _After(self, parameter, switch))

    def arrives(self, parameter: Tensor, number: int) -> None:
        """Called when a gradient of a parameter has arrived, before it is added to `.grad`.

        Args:
            parameter: that is followed.
            number: of its optimizer.
        """

    def arrived(self, parameter: Tensor, number: int) -> None:
        """Called when it has been added to `.grad`."""

    def stepped(self, parameters: list[Tensor], optimizer: Optimizer, number: int) -> None:
        """Called when an optimizer has stepped.

        Args:
            parameters: those of the optimizer that are followed.
            optimizer: the optimizer.
            number: its number.
        """

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        held = [each for group in optimizer.param_groups for each in group["params"] if id(each) in self.of]
        if held:
            self._has_stepped = True
            self.stepped(held, optimizer, self.of[id(held[0])])

    def end_step(self) -> None:
        self._looked += self._has_stepped
        self._has_stepped = False
        if self._is_done:
            self.left()

    def left(self) -> None:
        while self._listening:
            self._listening[-1].remove()
            self._listening.pop()

    def name(self, number: int) -> str:
        """An optimizer in words."""
        optimizers = self.around.optimizers()
        if len(optimizers) < 2:
            return "the optimizer"
        return f"optimizer {number} ({type(optimizers[number]).__name__})"

    def rows(self, number: int) -> tuple[str, ...]:
        """The name of the first parameter of an optimizer; of the only one the whole run."""
        optimizers, known = self.around.optimizers(), self.around.names()
        if len(optimizers) < 2:
            return ()
        held = (each for group in optimizers[number].param_groups for each in group["params"])
        return tuple(known[id(each)] for each in held if id(each) in known)[:1]


class _Arrival(OurHook):
    """A hook on the gradient of a parameter, which it only notes.

    Hooks of parameters are kept where no garbage collection looks, so that lookout and parameter are held weakly.
    """

    def __init__(self, lookout: ArrivalLookout, parameter: Tensor, switch: HookSwitch) -> None:
        self.switch = switch
        self._lookout, self._parameter = ref(lookout), ref(parameter)

    def tell(self, method: Callable[[ArrivalLookout, Tensor, int], None]) -> None:
        """Call a method of the lookout."""
        lookout, parameter = self._lookout(), self._parameter()
        if lookout is not None and parameter is not None:
            method(lookout, parameter, lookout.of[id(parameter)])


class _Before(_Arrival):
    """Runs before the gradient is added to `.grad`, and also where `torch.autograd.grad` returns the gradient."""

    def __call__(self, gradient: Tensor) -> None:
        if self.switch.is_on and (names.accumulates is None or names.accumulates()):
            self.tell(lambda lookout, parameter, number: lookout.arrives(parameter, number))


class _After(_Arrival):
    """Runs when the gradient has been added to `.grad`."""

    def __call__(self, parameter: Tensor) -> None:
        if self.switch.is_on:
            self.tell(lambda lookout, parameter, number: lookout.arrived(parameter, number))


def weakly(method: Any) -> Listener:
    """A listener that calls a method as long as its object is there: a function of torch is not to keep a run alive."""
    held = WeakMethod(method)

    def listener(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> After | None:
        alive = held()
        return None if alive is None else alive(args, kwargs)

    return listener


def line_here() -> str:
    """The line of the user's code that runs; empty if it is not known."""
    line = user_line()
    return "" if line is None else line.source
