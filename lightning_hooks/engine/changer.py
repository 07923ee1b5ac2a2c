"""One set of transforms at work: changes gradients at the step, or as backward makes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.compiled import refuse_compiled
from lightning_hooks.engine.links import Link
from lightning_hooks.engine.participant import HasParameters, Memo, ModulePart, Participant
from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.rules import Apply
from lightning_hooks.select import Target, named_modules, named_parameters, select

_SEED_STRIDE = 7919  # keeps the streams of neighbouring links apart; any large prime does


def resolve_links(model: nn.Module, rules: Sequence[Apply], seed: int = 0, where: str = "apply", start: int = 0) -> list[Link]:
    """The links that apply rules mean in a model.

    Args:
        model: the root.
        rules: apply rules, in order.
        seed: of the random transforms; equal on all ranks.
        where: the option that holds the rules, for messages.
        start: index of the first link, above those of earlier callbacks.

    Raises:
        RuleError: a rule that cannot be meant here, or matches nothing.
    """
    modules, parameters = named_modules(model), named_parameters(model)
    links: list[Link] = []
    for position, rule in enumerate(rules):
        here = f"{where}[{position}]"
        targets: list[Target[Any]]
        if rule.modules is not None:
            targets = list(select(modules, rule.modules, types=rule.types, strict=rule.strict, where=f"{here}.modules"))
            refuse_compiled(model, targets, f"{here}.modules")
        else:
            assert rule.params is not None
            targets = list(select(parameters, rule.params, types=rule.types, strict=rule.strict, where=f"{here}.params"))
        for transform in rule.transform:
            if rule.stage == "backward" and getattr(transform, "needs_all", False):
                raise RuleError(
                    f"{here}: {type(transform).__name__} needs all gradients at once, but in backward they come one at a time; "
                    "use it at stage='step' on params, or ClipByNorm for each tensor"
                )
            index = start + len(links)
            links.append(Link(index, rule, transform, targets, seed + _SEED_STRIDE * index, f"{here}.transform"))
    return links


class Changer(Participant):
    """Runs the links of a chain.

    Args:
        links: from `resolve_links`.
        scale: gives the loss scale as a tensor, or None where there is no scaler.
        order: place among the participants.
    """

    def __init__(
        self, links: Sequence[Link], *, scale: Callable[[], Tensor | None] = lambda: None, order: tuple[int, ...] = (0,)
    ) -> None:
        self.links = list(links)
        self.scale = scale
        self.order = order
        self.step = 0
        self.reporting = False
        self._step_links = [link for link in self.links if link.rule.stage == "step"]
        self._ids = {link.index: {id(target.value) for target in link.targets} for link in self._step_links}

    def due(self, step: int, stage: str) -> Hashable | None:
        """Every step of training."""
        return "always" if self.links and stage == "train" else None

    def begin(self, step: int, reporting: bool) -> None:
        """Note the number of the step and whether links report on it."""
        self.step = step
        self.reporting = reporting
        for link in self.links:
            link.report.begin()

    def module_parts(self, key: Any) -> Iterable[ModulePart]:
        """A part for each module that a link acts on."""
        for link in self.links:
            if link.rule.modules is not None:
                for target in link.targets:
                    yield ModulePart(target.value, str(link.rule.tensor), "", _BackwardPart(self, link, target, None))

    def param_parts(self, key: Any) -> Iterable[tuple[nn.Parameter, Any]]:
        """A part for each parameter that a link acts on in backward."""
        for link in self.links:
            if link.rule.params is not None and link.rule.stage == "backward":
                for target in link.targets:
                    yield target.value, _BackwardPart(self, link, target, target.value)

    def before_step(self, optimizer: HasParameters, memo: Memo) -> None:
        """Run the links of stage `step` on the gradients of one optimizer."""
        if not self._step_links:
            return
        parameters = {id(p): p for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        with torch.no_grad():
            for link in self._step_links:
                targets = [t for t in link.targets if id(t.value) in parameters]
                if targets:
                    self._change(link, targets)
        memo.forget("grad")

    def take_reports(self) -> dict[str, float]:
        """What each link did in the step that ends: tag to value."""
        out = {}
        for link in self.links:
            for what, value in link.report.finish().items():
                out[f"transform_{what}/{link.index}_{link.name}"] = value
        return out

    def state_dict(self) -> dict[str, Any]:
        """State, generators and counts of every link."""
        return {"links": [link.state_dict() for link in self.links]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint stopped; links whose transform changed start anew, with one warning."""
        saved = state["links"]
        changed = [
            f"{old['transform']} is now {link.transform!r}"
            for old, link in zip(saved, self.links, strict=False)
            if old["transform"] != repr(link.transform)
        ]
        if len(saved) != len(self.links):
            changed.append(f"{len(saved)} transforms are now {len(self.links)}")
        if changed:
            warnings.warn(f"the transforms changed since the checkpoint and start anew: {'; '.join(changed)}", stacklevel=2)
        for old, link in zip(saved, self.links, strict=False):
            if old["transform"] == repr(link.transform):
                link.load_state_dict(old)

    def refuse_under_scaler(self, optimizers: Sequence[Optimizer], where: str = "apply") -> None:
        """Refuse what cannot be right under a loss scaler.

        Raises:
            UnsupportedError: a repair in backward, or a step rule with an optimizer that unscales inside its step.
        """
        for link in self.links:
            if link.rule.stage == "backward" and getattr(link.transform, "repairs_nonfinite", False):
                raise UnsupportedError(
                    f"{link.place}: {link.name} in backward would hide the overflow from the loss scaler, whose scale then "
                    "grows without end; use stage='step' on params, or bf16-mixed"
                )
        fused = [type(o).__name__ for o in optimizers if getattr(o, "_step_supports_amp_scaling", False)]
        if fused and self._step_links:
            raise UnsupportedError(
                f"{self._step_links[0].place}: {fused[0]}(fused=True) unscales inside its own step, so gradients are still "
                "scaled when the rule would act; use fused=False or stage='backward'"
            )

    def _change(self, link: Link, targets: list[Target[Any]]) -> None:
        grads = [target.value.grad for target in targets]
        names = [target.name for target in targets]
        before = [grad.clone() for grad in grads] if self.reporting else []
        results = link.run(grads, names, [target.value for target in targets], self.step, owned=True)
        if self.reporting:
            link.report.take(before, results)
        for grad, result in zip(grads, results, strict=True):
            if result is not grad:
                grad.copy_(result)  # in place: the reducer of DDP may hold views of these gradients


class _BackwardPart:
    """One link at one module or parameter, in backward."""

    changes = True

    def __init__(self, changer: Changer, link: Link, target: Target[Any], param: Tensor | None) -> None:
        self.changer = changer
        self.link = link
        self.target = target
        self.param = param

    def change(self, grad: Tensor) -> Tensor | None:
        """The gradient that goes on, or None where it stays as it is.

        Under a loss scaler the transform sees float32 values divided by the scale; what is not finite stays so, since the
        scaler must see the overflow.
        """
        changer, scale = self.changer, self.changer.scale()
        if scale is None:
            seen = grad
        else:
            seen = grad.to(torch.promote_types(grad.dtype, torch.float32)) / scale
        (result,) = self.link.run([seen], [self.target.name], [self.param], changer.step, owned=False)
        if changer.reporting:
            self.link.report.take([seen], [result])
        if result is seen:
            return None
        if scale is None:
            return result
        back = (result * scale).to(grad.dtype)
        return torch.where(torch.isfinite(grad), back, grad) if grad.layout is torch.strided else back
