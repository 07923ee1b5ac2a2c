"""Checks the options of callbacks and how a run trains; an error names the reason and an alternative."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from lightning_hooks.callbacks._trainer import has_scaler, is_alone, is_under_way
from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.errors import RuleError, UnsupportedError, did_you_mean, shown
from lightning_hooks.plan.plan import Plan
from lightning_hooks.records.limits import Limits
from lightning_hooks.records.step_view import STAGE_PREFIX
from lightning_hooks.rules import FORWARD_TENSORS, Watch, parse_tensor
from lightning_hooks.rules.fields import typed
from lightning_hooks.rules.patterns import FLATTENED
from lightning_hooks.stats.sections import refuse_narrow

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer

# Why each strategy is refused.
# The key is the name of its class: two packages have the class, and DeepSpeed may not be installed.
_SHARDING: Final = {
    "FSDPStrategy": FLATTENED,
    "DeepSpeedStrategy": "DeepSpeed keeps gradients, and with ZeRO stage 3 parameters, in buffers of its own: when the "
    "optimizer steps, .grad is empty or a slice, and a change of it is not used",
}
_EMPTY: Final = "allow_zero_length_dataloader_with_multiple_devices"
_INSTEAD: Final = "use ModelParallelStrategy (FSDP2) or DDPStrategy; rules on modules work here"


@dataclass(frozen=True)
class Setting:
    """How a run trains, as far as checks need to know. The defaults are one process on the CPU, for a match without a Trainer.

    Args:
        function: the function of the Trainer: `fit`, `validate`, `test` or `predict`.
        strategy: the names of the class of the strategy and of its bases.
        precision: Lightning's name of the precision.
        is_scaled: whether a loss scaler is in use.
        alone: whether the run has one process.
        may_skip: whether a process without batches skips the run of a stage.
        device: the device of this process; None before processes are started.
        optimizers: the optimizers; empty before they are created.
    """

    function: str = "fit"
    strategy: tuple[str, ...] = ()
    precision: str = "32-true"
    is_scaled: bool = False
    alone: bool = True
    may_skip: bool = False
    device: torch.device | None = None
    optimizers: Sequence[Any] = ()

    @property
    def skippable(self) -> str:
        """The stage whose run one of several processes may skip; empty if there is none."""
        run = "validate" if self.function == "fit" else self.function
        return run if self.may_skip and not self.alone else ""


def setting_of(trainer: Trainer, model: Any) -> Setting:
    """The setting of the current run of a Trainer; before any run, that of a fit."""
    has_begun = is_under_way(trainer)
    model_and_data = [model, getattr(trainer, "datamodule", None)]
    return Setting(
        function=trainer.state.fn.value if has_begun and trainer.state.fn is not None else "fit",
        strategy=tuple(kind.__name__ for kind in type(trainer.strategy).__mro__),
        precision=str(trainer.precision),
        is_scaled=has_scaler(trainer),
        alone=is_alone(trainer),
        may_skip=any(getattr(each, _EMPTY, False) for each in model_and_data),
        device=trainer.strategy.root_device if has_begun else None,
        optimizers=tuple(trainer.optimizers) if has_begun else (),
    )


class Earlier(NamedTuple):
    """What earlier callbacks in the list do, because callbacks that are valid alone may not be valid together.

    Args:
        written: what earlier monitors write.
        transforms: the transforms of earlier callbacks.
        captures: the folders that captures write into; None for the default folder, which a run determines.
    """

    written: tuple[Written, ...] = ()
    transforms: tuple[BoundTransform, ...] = ()
    captures: tuple[Path | None, ...] = ()

    def leads(self, written: Written, stage: str) -> bool:
        """Whether a monitor is the first with its prefix in a stage. The first one writes the global numbers."""
        return next(each for each in self.written if each.prefix == written.prefix and stage in each.plans) is written


def refuse_for_strategy(setting: Setting, rules: Iterable[tuple[str, Any, Iterable[str]]]) -> None:
    """Refuse rules that cannot have a correct result with the strategy of a Trainer.

    Args:
        setting: how the run trains.
        rules: for each rule its name in messages, the rule, and its tensors.

    Raises:
        UnsupportedError: a rule is on parameters that the strategy shards itself, or on gradients of modules that are
            multiplied by a loss scale that the strategy does not show.
    """
    sharding = next((name for name in setting.strategy if name in _SHARDING), None)
    if sharding is None:
        return
    scaled = sharding == "DeepSpeedStrategy" and setting.precision.startswith("16")
    for where, rule, tensors in rules:
        if getattr(rule, "params", None) is not None:
            raise UnsupportedError(
                f"{where}.params: with {sharding} rules on parameters are not supported. {_SHARDING[sharding]}; {_INSTEAD}"
            )
        flowing = [tensor for tensor in tensors if parse_tensor(tensor)[0] in ("input_grad", "output_grad")]
        if scaled and flowing:
            raise UnsupportedError(
                f"{where}: {flowing[0]!r} with DeepSpeedStrategy in 16 bits is multiplied by a loss scale that DeepSpeed keeps "
                "to itself; use precision='bf16-mixed', or watch 'input' and 'output'"
            )


def refuse_empty_loaders(setting: Setting, stages: Collection[str]) -> None:
    """Refuse a stage that a process without batches may skip: the other processes would wait for it.

    Lightning lets a process skip a run, without calling any callback, only if the module or the data module allows it.

    Args:
        setting: how the run trains.
        stages: the stages in which all processes must take part.

    Raises:
        UnsupportedError: a process may skip one of the stages; the message names it.
    """
    stage = setting.skippable
    if stage and stage in stages:
        raise UnsupportedError(
            f"stages: with {_EMPTY} = True a process without batches skips {stage!r}, and the others would wait for it "
            f"for ever. Give every process at least one batch and leave it False, or omit {stage!r}"
        )


def refuse_setting(setting: Setting, stages: Collection[str]) -> None:
    """Refuse a device without float64 numbers, and stages that a process may skip.

    Args:
        setting: how the run trains.
        stages: the stages in which all processes must take part.

    Raises:
        UnsupportedError: the device or a stage is refused; the message names the reason.
    """
    if setting.device is not None:
        refuse_narrow(setting.device)
    refuse_empty_loaders(setting, stages)


def check_options(prefix: Any, on_error: Any, max_overhead: Any) -> None:
    """Refuse invalid options of a monitor; each argument is the option of its name.

    Raises:
        RuleError: an option is invalid; the message names the allowed values.
    """
    if not isinstance(prefix, str):
        raise RuleError(f"prefix must be a string, got {prefix!r}")
    if on_error not in ("raise", "warn"):
        hint = did_you_mean(on_error, ["raise", "warn"], 1)
        raise RuleError(f"on_error must be 'raise' or 'warn', got {on_error!r}{hint}")
    number = isinstance(max_overhead, (int, float)) and not isinstance(max_overhead, bool)
    if max_overhead is not None and not (number and 0 < max_overhead < 1):
        raise RuleError(f"max_overhead must be a share above 0 and below 1, or None, got {shown(max_overhead)}")


def refuse_idle_stages(stages: Iterable[str], watch: Sequence[Watch]) -> None:
    """Refuse a stage other than `train` if no rule watches tensors that exist there.

    Raises:
        RuleError: there is such a stage; the message names the first one.
    """
    others = [stage for stage in stages if stage != "train"]
    watched = (parse_tensor(tensor)[0] for rule in watch if rule.modules is not None for tensor in rule.tensors or ("output",))
    if others and set(FORWARD_TENSORS).isdisjoint(watched):
        raise RuleError(f"stages: no rule watches 'input' or 'output' of modules, and {others[0]!r} has no gradients")


class Written(NamedTuple):
    """What a monitor writes.

    Args:
        prefix: by which tables know the monitor.
        plans: the plan of each stage.
        limits: the limits on its scalars and histograms.
        owner: the monitor.
    """

    prefix: str
    plans: Mapping[str, Plan]
    limits: Limits
    owner: Any = None


def refuse_common_tags(monitors: Iterable[Written]) -> None:
    """Refuse two monitors that write the same tag.

    Args:
        monitors: the monitors in order. Among monitors with the same prefix, the first writes the global numbers of a stage.

    Raises:
        RuleError: two monitors write the same tag; the message names the first such tag.
    """
    leading: set[tuple[str, str]] = set()
    earlier: list[tuple[set[str], set[str]]] = []  # for each earlier monitor its tags, and tags of merged rows
    for prefix, plans, limits, _ in monitors:
        tags: set[str] = set()
        merged: set[str] = set()
        for stage, plan in plans.items():
            start = prefix + STAGE_PREFIX[stage]
            tags |= {f"{start}{each.tensor}_{stat}/{each.name}" for each in plan.rows_and_groups for stat in each.stats}
            merged |= {f"{start}{tag}" for tag in limits.merged_tags(stage)}
            if (prefix, stage) not in leading:
                leading.add((prefix, stage))
                tags.add(f"{start}run/nonfinite")  # the only global number that is always written
        for others, others_merged in earlier:
            common, why = sorted(tags & others), ""
            if not common:
                common = sorted((tags | merged) & (others | others_merged))
                why = ", the name of rows that are merged because of max_scalars or max_histograms"
            if common:
                raise RuleError(
                    f"prefix: two StatsMonitors would write {common[0]!r} ({len(common)} tags in common){why}; give one of "
                    "them another prefix="
                )
        earlier.append((tags, merged))


def refuse_common_folder(folder: Path | None, known: Collection[Path | None], where: str = "folder") -> None:
    """Refuse a capture that writes into the folder of another one.

    Args:
        folder: of the capture, absolute; None for the default folder.
        known: the folders of the other captures.
        where: the name of the option in messages.

    Raises:
        RuleError: the folder is among them.
    """
    if folder in known:
        named = "the default folder" if folder is None else str(folder)
        raise RuleError(f"{where}: two ActivationCapture would write into {named}; give one another folder=")


def options_repr(callback: Any, kind: type, hidden: Mapping[str, Any] | None = None, **normalised: Any) -> str:
    """The call that creates a callback, with the arguments that differ from their defaults.

    Args:
        callback: has an attribute for each argument of `kind`.
        kind: the public class of the callback.
        hidden: by argument, the value to show instead of an attribute that holds a secret.
        normalised: by argument, the value of the attribute for a default that the constructor converts.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()} | normalised
    values = {name: getattr(callback, name) for name in defaults}
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    shown = [f"{name}={typed((hidden or {}).get(name, value))}" for name, value in changed.items()]
    return f"{kind.__name__}({', '.join(shown)})"
