"""`lightning-hooks match package.Module`: builds a module and shows what `StatsMonitor()` would watch of it."""

from __future__ import annotations

from lightning_hooks.cli.building import built, values_of
from lightning_hooks.errors import RuleError

_COMMAND = "lightning-hooks match"


def match_module(arguments: list[str]) -> None:
    """Print what the default rules of a `StatsMonitor` match in a module.

    Args:
        arguments: the import path of the module, then `NAME=VALUE` for each argument of the module.

    Raises:
        RuleError: there is no such module, or it cannot be built; the message says which arguments it takes.
    """
    from lightning_hooks.engine.inspecting.inspect import match

    path, *values = arguments
    if path.endswith((".yaml", ".yml")):
        raise RuleError(f"{path} looks like a config: {_COMMAND} --config {path}")
    model = built(path, values_of(values), f"give them as `{_COMMAND} {path} NAME=VALUE`")
    configure = getattr(model, "configure_model", None)
    # Some LightningModules create their layers in `configure_model`.
    if callable(configure):
        configure()
    print(f"StatsMonitor() on {path}")
    print(match(model))
