"""Reads the facts of a training from its model and its optimizers, without reading a tensor of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol
from weakref import ref

from torch import Tensor, nn

from lightning_hooks.records.facts import (
    GroupFacts,
    ModuleFacts,
    OptimizerFacts,
    ParameterFacts,
    Sighting,
    StepFacts,
    Structure,
)
from lightning_hooks.rules.layers import has_children
from lightning_hooks.rules.patterns import Target, named_modules, named_parameters

_ROLES: Final = (
    ("loss", ("_Loss",)),
    ("norm", ("_NormBase", "LayerNorm", "GroupNorm", "RMSNorm", "LocalResponseNorm")),
    ("dropout", ("_DropoutNd", "DropPath")),
    ("embedding", ("Embedding", "EmbeddingBag")),
    ("attention", ("MultiheadAttention",)),
    ("recurrent", ("RNNBase", "RNNCellBase")),
    ("convolution", ("_ConvNd", "Conv1D")),
    ("linear", ("Linear", "Bilinear", "LazyLinear")),
)
"""The role of a module by the names of its class and of the bases of its class."""
_ENDINGS: Final = (
    ("norm", "Norm"),
    ("norm", "LayerNorm"),
    ("attention", "Attention"),
    ("embedding", "Embedding"),
    ("loss", "Loss"),
)
"""The role of a module of another library by the ending of the name of its class."""
_DROP_RATES: Final = {"dropout": ("p", "drop_prob"), "attention": ("dropout",), "recurrent": ("dropout",)}
"""By role, the attributes of a module that may hold the share of elements that it sets to 0."""
LOOK_EVERY: Final = 4
"""Steps between two looks whether the model holds other parameters."""
_ACTIVATIONS: Final = "torch.nn.modules.activation"
_PARAMETRIZATIONS: Final = "torch.nn.utils.parametrizations"


class Sees(Protocol):
    """Looks at the code around a model: a `Lookout`."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of the sightings that it looks for."""

    def sightings(self) -> tuple[Sighting, ...]:
        """What it has seen so far, as far as that still holds."""


class ModelFacts:
    """The facts of one model and its optimizers.

    Args:
        model: known weakly.
        optimizers: returns the current optimizers, in the order of the facts.

    Attributes:
        lookouts: what they see is a part of the facts; none by default.
        structure: the modules and parameters of the model when this object was made.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
        >>> facts = ModelFacts(model, lambda: [torch.optim.SGD(model.parameters(), lr=0.1)])
        >>> [(module.name, module.role) for module in facts.structure.modules]
        [('0', 'linear'), ('1', 'activation')]
        >>> facts.of_step().optimizers[0].groups[0].params
        ('0.weight', '0.bias')
    """

    def __init__(self, model: nn.Module, optimizers: Callable[[], Sequence[Any]]) -> None:
        self._model = ref(model)
        self._optimizers = optimizers
        self.lookouts: Sequence[Sees] = ()
        # Pruning and parametrizations move a parameter to another name, under which no view of the run knows it.
        self._first_names = {id(each.value): (ref(each.value), each.name) for each in named_parameters(model)}
        self._last = StepFacts()
        self._values: tuple[Any, ...] = ()  # of the fields of `_last`, once there was a step
        self._versions: dict[str, tuple[int, int]] = {}  # of frozen parameters: the id and how often its memory was written to
        # By the numbers of optimizer and group: the ids of the group's parameters, the names of those in the model, and the
        # number of the others.
        self._members: dict[tuple[int, int], tuple[tuple[int, ...], tuple[str, ...], int]] = {}
        self.structure = structure_of(model)
        self._calls = 0
        self._look_up()

    def forget(self) -> None:
        """Look up the modules and parameters of the model at the next step, because some may have been replaced."""
        self._is_stale = True

    def _has_changed(self) -> bool:
        """Whether the model holds other parameters than at the last look, as after a head was replaced within an epoch."""
        model = self._model()
        return model is not None and tuple(map(id, model.parameters())) != self._ids

    def _look_up(self) -> None:
        model = self._model()
        self._ids = () if model is None else tuple(map(id, model.parameters()))
        self._is_stale = False
        self._members.clear()
        modules = [] if model is None else named_modules(model)
        parameters = [] if model is None else named_parameters(model)
        self._modules = [(target.name, ref(target.value)) for target in modules]
        self._parameters = [(self._first_name(target), ref(target.value)) for target in parameters]
        self._names = {id(target.value): self._first_name(target) for target in parameters}

    def _first_name(self, target: Target[nn.Parameter]) -> str:
        """The name in the structure of a parameter that the model has had from the start; the current name of any other."""
        known, name = self._first_names.get(id(target.value), (None, target.name))
        return name if known is not None and known() is target.value else target.name

    def of_step(
        self,
        *,
        precision: str | None = None,
        accumulate: int | None = None,
        last_step: int | None = None,
        apart: tuple[str, ...] = (),
        validating: tuple[str, ...] | None = None,
        follows_metric: bool = False,
    ) -> StepFacts:
        """The facts of now, without the loss scale; the object of the call before if nothing has changed.

        Args:
            precision: as of `StepFacts`.
            accumulate: as of `StepFacts`.
            last_step: as of `StepFacts`.
            apart: as of `StepFacts`.
            validating: as of `StepFacts`.
            follows_metric: as of `StepFacts`.
        """
        self._calls += 1
        if self._is_stale or (self._calls % LOOK_EVERY == 0 and self._has_changed()):
            self._look_up()
        optimizers = tuple([self._of_optimizer(i, each) for i, each in enumerate(self._optimizers()) if _has_groups(each)])
        frozen, written = self._of_frozen()
        evaluating = tuple([name for name, known in self._modules if (m := known()) is not None and not m.training])
        # If nothing changed, keep the tuples of the step before: caches, such as that of checksums, compare tuples by identity.
        frozen = self._last.frozen if frozen == self._last.frozen else frozen
        evaluating = self._last.evaluating if evaluating == self._last.evaluating else evaluating
        written = self._last.written if written == self._last.written else written
        looked_for = tuple([kind for each in self.lookouts for kind in each.kinds])
        sightings = tuple([sighting for each in self.lookouts for sighting in each.sightings()])
        common = precision, accumulate, last_step, apart, written, validating, follows_metric, looked_for, sightings
        # Compare the values before an object is made of them: in most steps nothing changes.
        values = optimizers, 1.0, frozen, evaluating, *common
        if values != self._values:
            self._last, self._values = StepFacts(*values), values
        return self._last

    def _of_frozen(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the frozen parameters, and of those that were written to since the last call."""
        known, self._versions = self._versions, {}
        written = []
        for name, parameter_ref in self._parameters:
            parameter = parameter_ref()
            if parameter is None or parameter.requires_grad:
                continue
            # PyTorch counts the writes to a tensor on the host, except to one that was made in inference mode.
            self._versions[name] = now = id(parameter), 0 if parameter.is_inference() else parameter._version
            before = known.get(name, now)
            if before != now and before[0] == now[0]:
                written.append(name)
        return tuple(self._versions), tuple(written)

    def _of_optimizer(self, number: int, optimizer: Any) -> OptimizerFacts:
        groups = [self._of_group((number, i), group) for i, group in enumerate(optimizer.param_groups)]
        return OptimizerFacts(type(optimizer).__name__, tuple(groups))

    def _of_group(self, key: tuple[int, int], group: dict[str, Any]) -> GroupFacts:
        ids = tuple(map(id, group["params"]))
        known = self._members.get(key)
        if known is None or known[0] != ids:
            if any(each not in self._names for each in ids):
                self._look_up()
            known = self._members[key] = ids, *_members(ids, self._names)
        return _group_facts(group, *known[1:])


def with_scale(facts: StepFacts, scale: float, last: StepFacts | None) -> StepFacts:
    """Facts with a loss scale; `last` if it has the same facts already."""
    if facts.loss_scale == scale:
        return facts
    if last is not None and last == replace(facts, loss_scale=scale):
        return last
    return replace(facts, loss_scale=scale)


def facts_of_optimizers(optimizers: Iterable[Any], model: nn.Module) -> tuple[OptimizerFacts, ...]:
    """The facts of optimizers that hold parameters of a model."""
    names = {id(target.value): target.name for target in named_parameters(model)}
    return tuple(
        OptimizerFacts(
            type(optimizer).__name__,
            tuple(_group_facts(group, *_members(map(id, group["params"]), names)) for group in optimizer.param_groups),
        )
        for optimizer in optimizers
        if _has_groups(optimizer)
    )


def rates_of_optimizer(optimizer: Any) -> list[float]:
    """The learning rates of the groups of an optimizer, without those that only the device knows."""
    rates = (_number(group.get("lr")) for group in getattr(optimizer, "param_groups", ()))
    return [rate for rate in rates if rate is not None]


def _members(ids: Iterable[int], names: Mapping[int, str]) -> tuple[tuple[str, ...], int]:
    """The names of the parameters with these ids in a model, and the number of those that the model does not have."""
    found = [names.get(each) for each in ids]
    known = tuple(name for name in found if name is not None)
    return known, len(found) - len(known)


def _group_facts(group: Mapping[str, Any], params: tuple[str, ...], strangers: int) -> GroupFacts:
    return GroupFacts(_number(group.get("lr")), _number(group.get("weight_decay")), params, strangers)


def structure_of(model: nn.Module) -> Structure:
    """The modules that can be hooked and the parameters of a model."""
    modules = named_modules(model)
    names = {id(target.value): target.name for target in modules}
    return Structure(
        tuple(_module_facts(target.name, target.value) for target in modules),
        tuple(
            ParameterFacts(
                target.name, names.get(id(target.owner), ""), _shape(target.value), str(target.value.dtype)[6:], target.others
            )
            for target in named_parameters(model)
        ),
    )


def role_of(module: nn.Module) -> str:
    """What the class of a module is for; see `ModuleFacts`.

    Example:
        >>> role_of(nn.Conv2d(1, 1, 3)), role_of(nn.GELU()), role_of(nn.Sequential(nn.ReLU()))
        ('convolution', 'activation', 'container')
    """
    # What computes a weight, such as torch's `_WeightNorm`, is no norm of activations.
    if type(module).__module__ == _PARAMETRIZATIONS:
        return "other"
    bases = [kind.__name__ for kind in type(module).__mro__]
    for role, names in _ROLES:
        if any(name in bases for name in names):
            return role
    if type(module).__module__ == _ACTIVATIONS or any("Activation" in name or name.endswith("GELU") for name in bases):
        return "activation"
    for role, ending in _ENDINGS:
        if type(module).__name__.endswith(ending):
            return role
    return "container" if has_children(module) else "other"


def _module_facts(name: str, module: nn.Module) -> ModuleFacts:
    role = role_of(module)
    return ModuleFacts(name, type(module).__name__, role, _drop_rate(module, role))


def _drop_rate(module: nn.Module, role: str) -> float | None:
    # A recurrent network drops elements only between its layers.
    if role == "recurrent" and getattr(module, "num_layers", 1) == 1:
        return None
    values = (_number(getattr(module, name, None)) for name in _DROP_RATES.get(role, ()))
    return next((value for value in values if value is not None), None)


def _shape(parameter: Any) -> tuple[int, ...]:
    try:
        return tuple(map(int, parameter.shape))
    # Torch raises for a lazy parameter, which has no shape before the first call of its module.
    except RuntimeError:
        return ()


def _has_groups(optimizer: Any) -> bool:
    return hasattr(optimizer, "param_groups")


def _number(value: Any) -> float | None:
    """A number of the host. Optimizers for CUDA graphs keep the learning rate in a tensor on the device."""
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None
