"""What a rule leaves out: modules that its patterns match and that it does not watch, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from torch import nn

from lightning_hooks.errors import listed
from lightning_hooks.rules import Watch
from lightning_hooks.rules.fields import TypeSpec
from lightning_hooks.rules.layers import has_children, why_no_layers
from lightning_hooks.rules.patterns import Modules, by_names, by_types, named_modules


@dataclass(frozen=True)
class LeftOut:
    """Modules of one class that a rule leaves out for one reason.

    Args:
        rule: `watch[0]`.
        type: the class of the modules; empty if the reason names it.
        names: their dotted names.
        reason: why the rule leaves them out.
    """

    rule: str
    type: str
    names: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        """One line, which names a few of the modules."""
        kind = f" ({self.type})" if self.type else ""
        return f"{self.rule} leaves out {listed(self.names, most=3)}{kind}: {self.reason}"


def left_out_of(model: nn.Module, rules: Iterable[Watch]) -> list[LeftOut]:
    """The modules that rules with `select` leave out, by class and reason.

    Args:
        model: the root module.
        rules: the rules of a monitor.

    Example:
        >>> model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(2, 2)), "loss": nn.MSELoss()})
        >>> for each in left_out_of(model, [Watch(modules="*", select="layers")]):
        ...     print(each)
        watch[0] leaves out net (Sequential): has children, which are watched, and no parameters of its own
        watch[0] leaves out loss (MSELoss): a loss, or a part of one
    """
    modules = named_modules(model)
    groups: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for position, rule in enumerate(rules):
        for name, kind, reason in _of_rule(modules, rule):
            _, names = groups.setdefault((kind, reason), (f"watch[{position}]", []))
            if name not in names:
                names.append(name)
    return [LeftOut(here, kind, tuple(names), reason) for (kind, reason), (here, names) in groups.items()]


def _of_rule(modules: Modules, rule: Watch) -> Iterator[tuple[str, str, str]]:
    """The name, the class and the reason of each module that a rule leaves out."""
    if rule.modules is None or rule.select == "all":
        return
    reasons = why_no_layers(target.value for target in modules) if rule.select == "layers" else {}
    patterns = [rule.modules] if isinstance(rule.modules, str) else rule.modules
    # The constructor of the rule has normalised `types` to a tuple.
    types = cast(tuple[TypeSpec, ...] | None, rule.types)
    is_named, is_of_type = by_names(patterns, "modules"), by_types(types, "modules")
    for target in modules:
        reason = reasons.get(id(target.value)) or (
            "has children" if rule.select == "leaves" and has_children(target.value) else None
        )
        if reason is not None and is_named(target.aliases) and is_of_type(target.value):
            yield target.name, type(target.value).__name__, reason
    # `unhooked` has names and reasons only, so a rule with `types` cannot be matched against these modules.
    if rule.types is None:
        for name, reason in modules.unhooked.items():
            if is_named([name]):
                yield name, "", reason
