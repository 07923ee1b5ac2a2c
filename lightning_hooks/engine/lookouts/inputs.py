"""Looks at the data that layers with weights read: batches of one number, and columns that are odd."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar, Final, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from lightning_hooks.engine.lookouts.columns import FAR, FEWEST, MOST, Columns, Constant, measured
from lightning_hooks.engine.lookouts.empty_batches import EmptyBatches
from lightning_hooks.engine.lookouts.fingerprints import can_copy, few_of, have_arrived
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.compiled import compiled_modules
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.errors import listed
from lightning_hooks.hooks import Handles, HookSwitch, OurHook
from lightning_hooks.records.facts import Sighting
from lightning_hooks.rules.patterns import named_modules
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

_STEPS: Final = 4096
"""The number of first steps in which batches are looked at."""
_SEARCH: Final = 3
"""The first steps, in which the layers that read data are searched for."""
_COLUMNS_STEPS: Final = 1000
"""The number of first steps in which columns are looked at while one of them is odd."""
_EVERY: Final = 25
"""Steps between two looks at columns after the first ones."""
_MOST_LAYERS: Final = 4
"""The number of layers that are looked at."""
_NAMED: Final = 5
"""The number of columns, and of steps, that are named."""
ZEROS, ZERO, CONSTANT, SCALE = "batch-of-zeros", "column-zero", "column-constant", "column-scale"


class _Look(NamedTuple):
    """What was copied of the input of a layer at a step: some elements, and what is measured of its columns."""

    layer: _Layer
    elements: HostCopy
    columns: HostCopy | None

    def copies(self) -> list[HostCopy]:
        return [self.elements] if self.columns is None else [self.elements, self.columns]


class _Layer:
    """A layer with weights, and what is known of its input.

    Args:
        name: of the layer.
        module: the layer, which is known weakly.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, ref(module)
        self.are_ids = isinstance(module, nn.Embedding)
        self.is_convolution = isinstance(module, _ConvNd)
        self.reads_data = False
        self.waits = True  # for the first call of the step
        self.columns, self.batches = Columns(), EmptyBatches()

    def rows(self, given: Tensor) -> Tensor | None:
        """The input as samples of columns; None if it has too few columns or too many."""
        if self.is_convolution:
            kernel = getattr(self.module(), "kernel_size", ())
            # The dimensions of a convolution's input are those of the kernel behind the channels; a batch may be missing.
            given = given.movedim(-len(kernel) - 1, -1) if given.dim() > len(kernel) else given
        if given.dim() < 2 or not FEWEST <= given.shape[-1] <= MOST or given.is_complex():
            return None
        return given.detach().reshape(-1, given.shape[-1])


class InputsLookout(Lookout):
    """Looks at what enters the first layers: those with weights whose input is data, which no parameter has gone into.

    An input behind a norm with weights is no data in this sense, and one behind any other norm has the scale that the norm gave
    it. Of each step a few hundred elements of the input are copied, and of the first steps the smallest and largest number and
    the size of each column. They are read when they have arrived from the device.
    """

    kinds: ClassVar[tuple[str, ...]] = (ZEROS, ZERO, CONSTANT, SCALE)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._layers: list[_Layer] | None = None
        self._looks: list[_Look] = []  # of the step under way
        self._pending: deque[tuple[int, list[_Look]]] = deque()  # the steps whose looks have perhaps not arrived
        self._looked = self._batches = self._empty = 0
        self._step = 0
        self._empty_steps: list[int] = []  # the first ones
        self._is_odd = True
        self._seen: dict[str, Sighting] = {}

    def step_key(self, step: int, stage: str) -> Hashable | None:
        if stage != "train" or self._looked >= _STEPS or self._layers == []:
            return None
        return "inputs of all" if self._looked < _SEARCH else "inputs"

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        if self._layers is None:
            self._layers = [*self._found()]
        elif self._looked >= _SEARCH:
            self._layers = [each for each in self._layers if each.reads_data][:_MOST_LAYERS]
        for layer in self._layers:
            module = layer.module()
            if module is not None:
                handles.register(module.register_forward_pre_hook, _Hook(self, layer, switch))

    def _found(self) -> Iterator[_Layer]:
        model = self._around.model()
        if model is None:
            return
        inside = compiled_modules(model)
        for each in named_modules(model):
            module = each.value
            is_judged = isinstance(module, (nn.Linear, nn.Embedding, nn.RNNBase, _ConvNd))
            if is_judged and id(module) not in inside and not any(map(is_lazy, module.parameters(recurse=False))):
                yield _Layer(each.name, module)

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._looked += 1
        self._step, self._looks = step, []
        for layer in self._layers or ():
            layer.waits = True

    def note(self, layer: _Layer, args: Any) -> None:
        """Called with the arguments of the first call of a layer with gradients in a step."""
        given = args[0] if args else None
        given = given.data if isinstance(given, PackedSequence) else given
        if not isinstance(given, Tensor) or given.requires_grad or not can_copy(given) or given.numel() < 2:
            return
        layer.reads_data = True
        rows = layer.rows(given) if self._looks_at_columns(layer) else None
        elements = begin_copy(few_of(given).reshape(-1).double())
        self._looks.append(_Look(layer, elements, None if rows is None else begin_copy(measured(rows))))

    def _looks_at_columns(self, layer: _Layer) -> bool:
        if self._looked > _COLUMNS_STEPS:
            return False
        return (self._is_odd and self._looked % _EVERY == 0) or not layer.columns.are_judged

    def end_step(self) -> None:
        if self._looks:
            self._pending.append((self._step, self._looks))
            self._looks = []
        self._take()

    def left(self) -> None:
        self._looks = []
        self._pending.clear()

    def _take(self) -> None:
        """Read what has arrived from the device."""
        while self._pending and have_arrived([copy for look in self._pending[0][1] for copy in look.copies()]):
            step, looks = self._pending.popleft()
            self._batches += 1
            # A batch of which another layer reads numbers is not empty: a part of it may be missing on purpose.
            if all([look.layer.batches.is_empty(look.elements.wait()) for look in looks]):
                self._add_empty(step, looks[0])
            for look in looks:
                if look.columns is not None:
                    look.layer.columns.add(look.columns.wait())
                    self._judge_columns()

    def _add_empty(self, step: int, look: _Look) -> None:
        elements = look.elements.wait()
        self._empty += 1
        self._empty_steps = [*self._empty_steps, step][:_NAMED]
        steps = listed(map(str, self._empty_steps)) + (", …" if self._empty > _NAMED else "")
        what = f"all {len(elements):,} elements of its input that were looked at are {elements[0]:g}"
        when = f"at step {steps}" if self._empty == 1 else f"in {self._empty} of {self._batches} batches, at steps {steps}"
        self._seen[ZEROS] = Sighting(
            ZEROS, f"{what} {when}", (look.layer.name,), is_fact=self._empty > 1, measured=float(self._empty), threshold=1.0
        )

    def _judge_columns(self) -> None:
        empty = self._seen.get(ZEROS)
        self._seen = {} if empty is None else {ZEROS: empty}
        for layer in self._layers or ():
            for each in layer.columns.constant(are_ids=layer.are_ids):
                self._seen[f"{layer.name} {each.value}"] = _of_constant(layer, each)
            if not layer.are_ids and (apart := layer.columns.apart()):
                self._seen[layer.name] = _of_scale(layer, apart)
        self._is_odd = len(self._seen) > (empty is not None)

    def sightings(self) -> tuple[Sighting, ...]:
        self._take()
        return tuple(self._seen.values())


def _of_constant(layer: _Layer, found: Constant) -> Sighting:
    kind = ZERO if found.value == 0 and found.is_few else CONSTANT
    one = len(found.columns) == 1
    of = f"all {layer.columns.samples:,} samples of {layer.columns.batches} batches"
    text = f"{_named(found.columns)} of its input {'is' if one else 'are'} {found.value:g} in {of}"
    return Sighting(kind, text, (layer.name,), is_fact=False, measured=float(len(found.columns)))


def _of_scale(layer: _Layer, apart: list[tuple[int, float, float]]) -> Sighting:
    # Name the column that is farthest from the others first, whether it is larger or smaller.
    apart.sort(key=lambda each: -max(each[1] / each[2], each[2] / each[1]))
    column, size, usual = apart[0]
    times, word = (size / usual, "larger") if size > usual else (usual / size, "smaller")
    others = f"; so {'are' if len(apart) > 2 else 'is'} {_named([each for each, *_ in apart[1:]])}" if len(apart) > 1 else ""
    text = (
        f"column {column} of its input is {times:,.3g} times {word} than the median column: root mean square {size:.3g}, "
        f"median {usual:.3g}{others}"
    )
    return Sighting(SCALE, text, (layer.name,), is_fact=False, measured=times, threshold=FAR)


def _named(columns: list[int]) -> str:
    noun = "column" if len(columns) == 1 else "columns"
    return f"{noun} {listed(map(str, columns), _NAMED)}"


class _Hook(OurHook):
    """A hook on the calls of a layer, which it only notes."""

    def __init__(self, lookout: InputsLookout, layer: _Layer, switch: HookSwitch) -> None:
        self.switch = switch
        self._lookout, self._layer = lookout, layer

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self._layer.waits and self.switch.is_on and torch.is_grad_enabled():
            self._layer.waits = False
            self._lookout.note(self._layer, args)


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (InputsLookout,)
"""The lookouts of this file."""
