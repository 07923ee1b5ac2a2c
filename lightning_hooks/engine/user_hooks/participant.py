"""A user's own hooks: resolves `Hook` rules against a model; the participant registers each kind of hook with torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from lightning_hooks.engine.participants.compiled import compiled_modules, refuse_compiled
from lightning_hooks.engine.participants.participant import ModuleRule, Participant
from lightning_hooks.engine.participants.shards import refuse_sharded
from lightning_hooks.engine.user_hooks.runner import HookRunner
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks import Action, BackwardPass, Handles, HookSwitch, may_have_gradient
from lightning_hooks.hooks.user_kinds import (
    optimizer_hook,
    register_backward,
    register_first,
    register_optimizer,
    register_post_accumulate,
    register_saved,
)
from lightning_hooks.rules import MODULE_KINDS, OPTIMIZER_KINDS, PARAM_KINDS, Hook
from lightning_hooks.rules.patterns import Target, each_once, matched_by
from lightning_hooks.rules.schedule import EveryN, every_n


@dataclass
class BoundHook:
    """A hook rule with the modules or parameters it matched."""

    rule: Hook
    where: str  # the name of the rule in messages, such as `hooks[0]`
    schedule: EveryN
    runners: list[HookRunner]  # one for each target; the hook of an optimizer has one without a target

    @property
    def targets(self) -> list[Target[Any]]:
        return [runner.target for runner in self.runners if runner.target is not None]

    @property
    def distinct(self) -> list[HookRunner]:
        """One runner for each object: during a fit two names may come to share a module, which is hooked once."""
        kept = set(map(id, each_once(self.targets)))
        return [runner for runner in self.runners if runner.target is None or id(runner.target) in kept]


def resolve_hooks(model: nn.Module, rules: Sequence[Hook], where: str = "") -> list[BoundHook]:
    """Hook rules with their targets in a model; `where` is a prefix for the names of rules in messages.

    Raises:
        RuleError: a rule that matches nothing.
    """
    bound = []
    for here, rule, targets in matched_by(model, rules, f"{where}hooks"):
        if rule.modules is not None:
            refuse_compiled(compiled_modules(model), _module_rule(here, targets))
        elif rule.kind == "param_grad":
            instead = "Use kind='post_accumulate_grad', which sees the gradient averaged over ranks, or GradientTransforms"
            refuse_sharded(targets, f"{here}.params", f"the hook would never run. {instead}")
        schedule = every_n(1 if rule.every_n_steps is None else rule.every_n_steps, f"{here}.every_n_steps")
        runners = [HookRunner(rule, here, target) for target in (targets if rule.kind not in OPTIMIZER_KINDS else [None])]
        bound.append(BoundHook(rule, here, schedule, runners))
    return bound


def _module_rule(where: str, targets: Sequence[Target[Any]]) -> ModuleRule:
    return ModuleRule(f"{where}.modules", targets, "a hook of your own", is_traceable=False)


class UserHooksParticipant(Participant):
    """Runs the hooks of a user.

    Args:
        hooks: the bound hooks.
        optimizers: returns the optimizers; they may change during a fit.
        stays: whether hooks of optimizers stay registered until the run ends. They must in a plain loop, where the step ends
            inside the optimizer's step.
    """

    def __init__(
        self,
        hooks: Sequence[BoundHook],
        *,
        optimizers: Callable[[], Sequence[Optimizer]],
        stays: bool = False,
    ) -> None:
        self._stays = stays
        self.hooks = list(hooks)
        self._optimizers = optimizers
        self._due_now: tuple[int, ...] = ()  # the indices of the hooks that are due in the training step
        self._switch: HookSwitch | None = None

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        """Register the hooks of optimizers that stay until the run ends."""
        participant = ref(self)
        self._switch = switch
        for i, hook in enumerate(self.hooks):
            if hook.rule.kind not in OPTIMIZER_KINDS or not self._stays:
                continue

            def run(*args: Any, index: int = i, runner: HookRunner = hook.runners[0]) -> Any:
                alive = participant()
                return runner(*args) if alive is not None and index in alive._due_now else None

            stepping = optimizer_hook(run, switch)
            for optimizer in self._optimizers():
                register_optimizer(optimizer, stepping, handles, before=hook.rule.kind == "optimizer_step_pre")

    def step_key(self, step: int, stage: str) -> Hashable | None:
        due = tuple(i for i, h in enumerate(self.hooks) if stage in h.rule.stages and h.schedule.due(step))
        if stage == "train":
            # Set `_due_now` here, because `begin_step` is not called if nothing is due.
            self._due_now = due
        return due or None

    def all_targets(self) -> Iterable[Target[Any]]:
        return (target for hook in self.hooks for target in hook.targets)

    def changes(self) -> Iterable[tuple[int, str]]:
        # A hook that is registered by itself runs in an order of its own, so it changes what all participants read, or nothing.
        for hook in self.hooks:
            if hook.rule.kind in _CALLS:
                yield from ((id(target.value), _TENSORS.get(hook.rule.kind, hook.rule.kind)) for target in hook.targets)

    def actions(self, key: Any) -> Iterable[Action]:
        """The hooks that are registered together with other hooks of this package, and run in the order of participants."""
        for hook in (self.hooks[i] for i in key):
            kind = hook.rule.kind
            if kind in _CALLS and not _before_others(hook.rule):
                changes, whole = kind in ("input_grad", "output_grad", "param_grad"), kind in ("forward_pre", "forward")
                tensor, first = _TENSORS.get(kind, kind), hook.rule.prepend
                for runner in hook.distinct:
                    call = _CALLS[kind](runner, self._switch)
                    yield Action(
                        runner.value, tensor, call, changes=changes, whole=whole, first=first, backward=BackwardPass.ANY
                    )

    def module_rules(self, key: Any = None) -> Iterable[ModuleRule]:
        for hook in self.hooks if key is None else (self.hooks[i] for i in key):
            notes_calls = hook.rule.kind in _CALLS and not _before_others(hook.rule)
            if hook.rule.modules is not None and (key is None or notes_calls):
                yield _module_rule(hook.where, hook.targets)

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        """Register the other hooks, each separately."""
        for hook in (self.hooks[i] for i in key):
            for runner in hook.distinct:
                self._register(runner, switch, handles)

    def _register(self, runner: HookRunner, switch: HookSwitch, handles: Handles) -> None:
        kind, prepend, value = runner.rule.kind, runner.rule.prepend, runner.value
        if kind in OPTIMIZER_KINDS:
            for optimizer in () if self._stays else self._optimizers():
                try:
                    register_optimizer(optimizer, optimizer_hook(runner, switch), handles, before=kind == "optimizer_step_pre")
                except UnsupportedError as error:
                    raise UnsupportedError(f"{runner.where}.kind: {kind!r}: {error}") from error
        elif kind in ("full_backward", "full_backward_pre"):
            register_backward(value, runner, switch, handles, before=kind == "full_backward_pre", prepend=prepend)
        elif kind == "post_accumulate_grad":
            if may_have_gradient(value):
                register_post_accumulate(value, runner, switch, handles)
        elif kind == "saved_tensors":
            register_saved(value, (runner.of(0), runner.of(1)), switch, handles, is_due=runner.starts)
        elif _before_others(runner.rule):
            register_first(value, _CALLS[kind](runner, switch), switch, handles, before=kind == "forward_pre")


def _before_others(rule: Hook) -> bool:
    """Whether a hook runs before hooks of other code, and so needs a separate registration."""
    return rule.prepend and rule.kind in ("forward_pre", "forward")


def _on_gradient(runner: HookRunner, switch: HookSwitch) -> Callable[[Tensor], Tensor | None]:
    """A tensor hook: `(grad) -> grad or None`."""
    return lambda grad: runner(grad, like=grad)


def _before(runner: HookRunner, switch: HookSwitch) -> Callable[..., Any]:
    """`(module, args) -> args or None`; with keyword arguments `(module, args, kwargs) -> (args, kwargs) or None`."""

    def call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if runner.rule.with_kwargs:
            return runner(module, args, kwargs, like=(args, kwargs))
        result = runner(module, args, like=args)
        if result is None:
            return None
        return (result if isinstance(result, tuple) else (result,)), kwargs

    return call


def _after(runner: HookRunner, switch: HookSwitch) -> Callable[..., Any]:
    """`(module, args, output) -> output or None`; with keyword arguments `(module, args, kwargs, output)`."""

    def call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        given = (module, args, kwargs, output) if runner.rule.with_kwargs else (module, args, output)
        return runner(*given, like=output)

    return call


def _at_node(runner: HookRunner, switch: HookSwitch) -> Callable[[Node], None]:
    """`(grad_inputs, grad_outputs)` after the node, or `(grad_outputs)` before it, returning their replacements."""

    def call(node: Node) -> None:
        if runner.rule.kind == "node_pre":
            node.register_prehook(lambda outputs: runner(outputs, like=outputs) if switch.is_on else None)
        else:
            node.register_hook(lambda inputs, outputs: runner(inputs, outputs, like=inputs) if switch.is_on else None)

    return call


_TENSORS = {"forward_pre": "input", "forward": "output", "node_pre": "node", "param_grad": "grad"}
_CALLS: dict[str, Callable[[HookRunner, Any], Any]] = {
    "forward_pre": _before,
    "forward": _after,
    "input_grad": _on_gradient,
    "output_grad": _on_gradient,
    "param_grad": _on_gradient,
    "node_pre": _at_node,
    "node": _at_node,
}
_REGISTERED = {"full_backward", "full_backward_pre", "saved_tensors", "post_accumulate_grad"}
assert _CALLS.keys() | _REGISTERED == {*MODULE_KINDS, *PARAM_KINDS}
