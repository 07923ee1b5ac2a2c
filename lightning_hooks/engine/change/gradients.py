"""One set of transforms at work: changes gradients at the step, or as backward makes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from lightning_hooks.engine.change.bound import BoundTransform
from lightning_hooks.engine.change.report import Before
from lightning_hooks.engine.change.resuming import compare
from lightning_hooks.engine.participant import HasParameters, ModulePart, Participant, PhaseMemo
from lightning_hooks.engine.scaling import unscales_itself
from lightning_hooks.engine.shards import is_sharded, params_for, parts_of, put_back, refuse_sharded, takes_parts, wholes_of
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.rules.patterns import Target


class GradientChanger(Participant):
    """Runs the links of a chain.

    Args:
        links: from `resolve_applies`.
        scale: gives the loss scale as a tensor, or None where there is no scaler.
        order: place among the participants.
        rank: of this process.
    """

    ever: str | None = "always"

    def __init__(
        self,
        links: Sequence[BoundTransform],
        *,
        scale: Callable[[], Tensor | None] = lambda: None,
        order: tuple[int, ...] = (0,),
        rank: int = 0,
    ) -> None:
        self.links = list(links)
        self.scale = scale
        self.order = order
        self.rank = rank
        self.step = 0
        self.reporting = False
        self.skipped_steps = 0
        self._step_links = [link for link in self.links if link.when == "step"]
        self._may_skip = any(link.may_skip for link in self._step_links)

    @property
    def acts_at_step(self) -> bool:
        """Whether it changes the gradient of the optimizer's step."""
        return bool(self._step_links)

    def due(self, step: int, stage: str) -> Hashable | None:
        """Every step of training."""
        return "always" if self.links and stage == "train" else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        """Note the number of the step and whether links report on it."""
        self.step = step
        self.reporting = reporting
        for link in self.links:
            link.reseed(step, self.rank)
            link.report.begin()

    def all_targets(self) -> Iterable[Target[Any]]:
        """Those of its links."""
        return (target for link in self.links for target in link.targets)

    def module_parts(self, key: Any) -> Iterable[ModulePart]:
        """A part for each module that a link acts on."""
        for link in self.links:
            if link.rule.modules is not None:
                for target in link.targets:
                    yield ModulePart(target.value, link.tensor, "", _BackwardPart(self, link, target, None))

    def param_parts(self, key: Any) -> Iterable[tuple[nn.Parameter, Any]]:
        """A part for each parameter that a link acts on in backward."""
        for link in self.links:
            if link.rule.params is not None and link.when == "backward":
                for target in link.targets:
                    yield target.value, _BackwardPart(self, link, target, target.value)

    def before_step(self, optimizer: HasParameters, memo: PhaseMemo) -> None:
        """Run the links that act at the step on the gradients of one optimizer."""
        if not self._step_links:
            return
        parameters = {id(p): p for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        with torch.no_grad():
            for link in self._step_links:
                targets = [t for t in link.targets if id(t.value) in parameters]
                if targets:
                    self._change(link, targets)
            if self._may_skip and self._agreed([link for link in self._step_links if link.context.skip_reason is not None]):
                self.skipped_steps += 1
                memo.skipped = True
                for parameter in parameters.values():
                    parameter.grad = None
        for link in self._step_links:
            link.context.skip_reason = None
        memo.forget("grad")

    def _agreed(self, asking: Sequence[BoundTransform]) -> bool:
        """Whether any rank asks to skip the step: one collective where there are several, and one look at its result."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return bool(asking)
        device = next((target.value.device for link in self._step_links for target in link.targets), None)
        asked = torch.tensor(float(bool(asking)), device=device)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
        return bool(asked)

    def before(self, link: BoundTransform, tensors: Sequence[Tensor], name: str = "", *, owned: bool) -> Before | None:
        """Where links report, what is kept of tensors that a link is given next.

        Args:
            link: which.
            tensors: as they come.
            name: of the target, where there is one.
            owned: whether it may overwrite them.
        """
        if not self.reporting:
            return None
        with self.account.meter.common, torch.no_grad():  # transforms are what was asked for; their reports are overhead
            try:
                return link.report.before(tensors, owned=owned)
            except Exception as error:
                link.cannot_report(tensors, name, error)
                return None

    def after(
        self, link: BoundTransform, before: Before | None, results: Sequence[Tensor], name: str = "", *, apart: bool = False
    ) -> None:
        """Report what a link has made of tensors.

        Args:
            link: which.
            before: of the same tensors.
            results: as they leave.
            name: of the target, where there is one.
            apart: whether every rank has other elements.
        """
        if before is not None:
            with self.account.meter.common, torch.no_grad():
                try:
                    link.report.after(before, results, factor=link.context.factor, apart=apart)
                except Exception as error:
                    link.cannot_report(before.tensors or results, name, error)

    def take_reports(self) -> dict[str, float]:
        """What each link did in the step that ends: tag to value."""
        out = {}
        for link in self.links:
            for what, value in link.report.finish().items():
                out[f"transform_{what}/{link.index}_{link.name}"] = value
        if self._may_skip:
            out["hooks/skipped_steps"] = float(self.skipped_steps)
        return out

    def state_dict(self) -> dict[str, Any]:
        """State, generators and counts of every link."""
        return {"links": [link.state_dict() for link in self.links], "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint stopped; links that changed start anew, with one warning that names them."""
        self.skipped_steps = state.get("skipped_steps", 0)
        pairs, changed = compare(state["links"], self.links)
        if changed:
            warnings.warn(
                f"the transforms changed since the checkpoint; what changed starts anew: {'; '.join(changed)}", stacklevel=2
            )
        for saved, link in pairs:
            link.load_state_dict(saved)

    def refuse_skipping(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse to skip steps of an optimizer that need not leave parameters without gradient alone.

        Raises:
            UnsupportedError: for LBFGS, and for an optimizer that is not torch's and does not say that it does.
        """
        for link in self._step_links:
            for optimizer in optimizers if link.may_skip else ():
                promises = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)
                if not (promises or getattr(optimizer, "skips_missing_gradients", False)):
                    raise UnsupportedError(
                        f"{link.place}: {link.name} skips a step by taking the gradients away, and {type(optimizer).__name__} "
                        "is not known to leave parameters without gradient, and their state, as they are. If it does, set "
                        "skips_missing_gradients = True on it"
                    )

    def refuse_under_scaler(self, optimizers: Sequence[Optimizer], where: str = "apply") -> None:
        """Refuse what cannot be right under a loss scaler.

        Raises:
            UnsupportedError: a repair in backward, or a step rule with an optimizer that unscales inside its step.
        """
        for link in self.links:
            if link.when == "backward" and getattr(link.transform, "repairs_nonfinite", False):
                raise UnsupportedError(
                    f"{link.place}: {link.name} in backward would hide the overflow from the loss scaler, whose scale then "
                    "grows without end; use when='step' on params, or bf16-mixed"
                )
        fused = [type(o).__name__ for o in optimizers if unscales_itself(o)]
        if fused and self._step_links:
            raise UnsupportedError(
                f"{self._step_links[0].place}: {fused[0]}(fused=True) unscales inside its own step, so gradients are still "
                "scaled when the rule would act; use fused=False or when='backward'"
            )

    def _change(self, link: BoundTransform, targets: list[Target[Any]]) -> None:
        grads = [target.value.grad for target in targets]
        names = [target.name for target in targets]
        if any(map(is_sharded, grads)):
            self._change_sharded(link, targets, grads, names)
            return
        before = self.before(link, grads, owned=True)
        results = link.run(grads, names, [target.value for target in targets], self.step, owned=True)
        self.after(link, before, results)
        for grad, result in zip(grads, results, strict=True):
            if result is not grad:
                grad.copy_(result)  # in place: the reducer of DDP may hold views of these gradients

    def _change_sharded(self, link: BoundTransform, targets: list[Target[Any]], grads: list[Tensor], names: list[str]) -> None:
        alone = takes_parts(link.transform)
        seen = parts_of(grads) if alone else wholes_of(grads)
        params = params_for(link.transform, [target.value.detach() for target in targets], f"{link.place} ({link.name})")
        before = self.before(link, seen, owned=True)
        results = link.run(seen, names, params, self.step, owned=True)
        for grad, tensor, result in zip(grads, seen, results, strict=True):
            if is_sharded(grad) and not alone:
                put_back(grad, result)
            elif result is not tensor:
                tensor.copy_(result)
        self.after(link, before, results, apart=alone)

    def refuse_sharded(self) -> None:
        """Refuse rules on sharded parameters in backward.

        Raises:
            UnsupportedError: with the first such parameter.
        """
        for link in self.links:
            if link.when == "backward" and link.rule.params is not None:
                refuse_sharded(link.targets, link.place, "the rule would do nothing. Use when='step', or a rule on modules")


class _BackwardPart:
    """One link at one module or parameter, in backward."""

    changes = True

    def __init__(self, changer: GradientChanger, link: BoundTransform, target: Target[Any], param: Tensor | None) -> None:
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
        self.link.refuse_transformed(grad, self.target.name)
        if scale is None:
            seen = grad
        else:
            seen = grad.to(torch.promote_types(grad.dtype, torch.float32)) / scale
        before = changer.before(self.link, [seen], self.target.name, owned=False)
        (result,) = self.link.run([seen], [self.target.name], [self.param], changer.step, owned=False)
        changer.after(self.link, before, [result], self.target.name)
        if result is seen:
            return None
        if scale is None:
            return result
        back = (result * scale).to(grad.dtype)
        return torch.where(torch.isfinite(grad), back, grad) if grad.layout is torch.strided else back
