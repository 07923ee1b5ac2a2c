"""Which modules of a model are layers of the network: those that the default rules watch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torchmetrics import Metric, MetricCollection

HAS_CHILDREN: Final = "has children, which are watched, and no parameters of its own"
_IN_A_LOSS: Final = "a loss, or a part of one"
_IN_A_METRIC: Final = "a metric, or a part of one"
_NEVER_CALLED: Final = "torch uses its parameters directly and never calls it"
_PARAMETRIZATION: Final = "computes a parameter of the module that holds it"


def why_no_layers(modules: Iterable[nn.Module]) -> dict[int, str]:
    """The reasons why modules are no layers, by the id of each module that is none.

    A layer is a module that has no children or owns parameters. Metrics, losses and the modules inside them are no layers.
    Losses are the loss classes of torch, and classes without parameters whose name ends in `Loss`.

    Example:
        >>> net, loss = nn.Sequential(nn.Linear(2, 2)), nn.MSELoss()
        >>> why_no_layers([net, net[0], loss]) == {id(net): HAS_CHILDREN, id(loss): "a loss, or a part of one"}
        True
    """
    listed = list(modules)
    # If a module is a metric or a loss, the modules inside it are none of the model's layers either.
    reasons = {id(inner): why for module in listed if (why := _apart(module)) for inner in module.modules()}
    for module in listed:
        if id(module) not in reasons and (why := _alone(module)):
            reasons[id(module)] = why
    return reasons


def has_children(module: nn.Module) -> bool:
    """Whether a module has children. Of a child even its truth may raise: a list of modules has a length, others only seem to.

    Example:
        >>> has_children(nn.Sequential(nn.ModuleList())), has_children(nn.Linear(1, 1))
        (True, False)
    """
    return next(module.children(), None) is not None


def _apart(module: nn.Module) -> str | None:
    if isinstance(module, (Metric, MetricCollection)):
        return _IN_A_METRIC
    # torch's losses have a common base class. Other losses are known only by the name `…Loss`: one that has parameters may hold
    # the whole network, so it is not left out.
    if "torch.nn.modules.loss._Loss" in _classes(module):
        return _IN_A_LOSS
    return _IN_A_LOSS if type(module).__name__.endswith("Loss") and next(module.parameters(), None) is None else None


def _alone(module: nn.Module) -> str | None:
    if "torch.nn.modules.linear.NonDynamicallyQuantizableLinear" in _classes(module):
        return _NEVER_CALLED
    if isinstance(module, ParametrizationList):
        return _PARAMETRIZATION
    return HAS_CHILDREN if has_children(module) and not _owns_parameters(module) else None


def _owns_parameters(module: nn.Module) -> bool:
    # A module with a parametrization owns its parameters too, although they are stored in a child.
    return next(module.parameters(recurse=False), None) is not None or is_parametrized(module)


def _classes(module: nn.Module) -> set[str]:
    """The names of the classes of a module: some of torch's own are private, so they are compared by name."""
    return {f"{kind.__module__}.{kind.__name__}" for kind in type(module).__mro__}
