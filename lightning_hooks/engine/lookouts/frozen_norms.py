"""Looks for norms whose parameters are frozen and whose running statistics move at each step all the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple
from weakref import ref

from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.lookouts.writes import Writes, writes_of
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.records.facts import Sighting
from lightning_hooks.rules.patterns import named_modules

_FIRST: Final = 3
"""The number of first steps at each of which frozen norms are searched for."""
_EVERY: Final = 25
"""Steps between two searches after the first ones."""
_LEAST: Final = 3
"""The number of steps in a row at which the statistics of a norm that was never in evaluation mode must have moved."""
_USUAL: Final = "the parameters of this norm are frozen, but it is in training mode and each batch moves its running statistics"


class _State(NamedTuple):
    """The writes to the number of a norm's batches, and to the norm's parameters."""

    counter: Writes
    parameters: tuple[Writes, ...]


@dataclass
class _Known:
    """What is known of one norm.

    Args:
        state: at the last look; None if it was in evaluation mode, or trained.
        moves: the number of looks in a row at which its statistics had moved.
        evaluated: the last step at which it was seen in evaluation mode; None if it never was.
    """

    state: _State | None = None
    moves: int = 0
    evaluated: int | None = None


class FrozenNormsLookout(Lookout):
    """Looks whether the running statistics of norms move although the parameters of the norms are frozen.

    PyTorch counts the writes to a tensor on the host, so that no number is read. A norm that an optimizer has trained, as the
    discriminator of a GAN that is frozen for a while, and one whose parameters are written to, as those of an averaged copy,
    are left out. A norm without parameters is as frozen as the module that holds it.
    """

    kinds: ClassVar[tuple[str, ...]] = ("frozen-norm-moves",)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._norms: list[tuple[str, Callable[[], _NormBase | None], list[Callable[[], Tensor | None]]]] = []
        self._known: dict[str, _Known] = {}  # by the name of the norm
        self._step = 0

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "frozen norms" if stage == "train" and (self._norms or step < _FIRST or step % _EVERY == 0) else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._step = step

    def end_step(self) -> None:
        if self._step < _FIRST or self._step % _EVERY == 0:
            self._norms = list(self._frozen_norms())
            self._known = {name: self._known.get(name, _Known()) for name, _, _ in self._norms}
        optimizers = self._optimizers()
        for name, norm, parameters in self._norms:
            module, own = norm(), [known() for known in parameters]
            if module is not None:
                is_frozen = not any(each is None or each.requires_grad or _was_trained(each, optimizers) for each in own)
                self._look(self._known[name], module, own if is_frozen else None)

    def _optimizers(self) -> list[Optimizer]:
        return [each for each in self._around.optimizers() if hasattr(each, "param_groups")]

    def _frozen_norms(self) -> Iterator[tuple[str, ref[_NormBase], list[Callable[[], Tensor | None]]]]:
        """The norms with running statistics whose parameters are frozen, each with these, while something else is trained."""
        model = self._around.model()
        if model is None or not any(each.requires_grad for optimizer in self._optimizers() for each in _held(optimizer)):
            return
        modules = {target.name: target.value for target in named_modules(model)}
        for name, module in modules.items():
            if isinstance(module, _NormBase) and isinstance(module.num_batches_tracked, Tensor):
                own = list(module.parameters()) or list(modules.get(name.rpartition(".")[0], module).parameters())
                if own and not any(each.requires_grad for each in own):
                    yield name, ref(module), [ref(each) for each in own]

    def _look(self, known: _Known, module: _NormBase, own: list[Any] | None) -> None:
        """Compare a norm with what it was at the last look; `own` are the parameters that make it a frozen one."""
        before, known.state = known.state, None
        counter = module.num_batches_tracked
        if own is not None and module.training and counter is not None:
            known.state = _State(writes_of(counter), tuple(map(writes_of, own)))
        elif own is not None and not module.training:
            known.evaluated = self._step
        now = known.state
        if now is None or (before is not None and (now.parameters != before.parameters or now.counter[0] != before.counter[0])):
            known.moves = 0
        elif before is not None and now.counter != before.counter:
            known.moves += 1

    def sightings(self) -> tuple[Sighting, ...]:
        usual, back = [], defaultdict(list)
        for name, known in self._known.items():
            if known.moves and known.evaluated is not None:
                back[known.evaluated].append(name)
            elif known.moves >= _LEAST:
                usual.append(name)
        seen = [Sighting("frozen-norm-moves", _put_back(step), tuple(names)) for step, names in back.items()]
        if usual:
            seen.append(Sighting("frozen-norm-moves", _USUAL, tuple(usual), is_fact=False))
        return tuple(seen)


def _put_back(step: int) -> str:
    return (
        f"the parameters of this norm are frozen, and it was in evaluation mode at step {step}, but is in training mode since, "
        "so that each batch moves its running statistics"
    )


def _held(optimizer: Optimizer) -> Iterable[Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _was_trained(parameter: Tensor, optimizers: Iterable[Optimizer]) -> bool:
    """Whether a frozen parameter has a gradient, or an optimizer has made a state for it."""
    return parameter.grad is not None or any(parameter in optimizer.state for optimizer in optimizers)


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (FrozenNormsLookout,)
"""The lookouts of this file."""
