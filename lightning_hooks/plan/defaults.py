"""The default rules of a monitor, and the modules to which they apply."""

from __future__ import annotations

from typing import Final

from torch import nn
from torchmetrics import Metric

from lightning_hooks.rules import Watch
from lightning_hooks.rules.patterns import Modules

DEFAULT_WATCH: Final = (
    Watch(modules="*", leaves=True, tensors=("output", "output_grad"), strict=False),
    Watch(params="*", tensors=("param", "grad", "update"), strict=False),
)


def layers(modules: Modules) -> Modules:
    """The modules that are layers of a network: without metrics, losses and modules that are never called.

    Metrics, losses and the modules inside them do not compute activations of the network. Losses are the loss classes of torch,
    and classes without parameters whose name ends in `Loss`. The output projection of `nn.MultiheadAttention` is never called:
    torch uses its weights directly.

    Example:
        >>> from lightning_hooks.rules.patterns import named_modules
        >>> model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(2, 2)), "loss": nn.MSELoss()})
        >>> [target.name for target in layers(named_modules(model))]
        ['net', 'net.0']
    """
    excluded = {id(inner) for target in modules if _is_no_layer(target.value) for inner in target.value.modules()}
    kept, scripted = ([each for each in targets if id(each.value) not in excluded] for targets in (modules, modules.scripted))
    return Modules(kept, modules.unhooked, scripted)


def _is_no_layer(module: nn.Module) -> bool:
    if isinstance(module, Metric):
        return True
    # A module named `…Loss` that has parameters may hold the whole network.
    if type(module).__name__.endswith("Loss") and next(module.parameters(), None) is None:
        return True
    # Compare names, because both classes are private to torch.
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(module).__mro__}
    return bool(names & {"torch.nn.modules.loss._Loss", "torch.nn.modules.linear.NonDynamicallyQuantizableLinear"})
