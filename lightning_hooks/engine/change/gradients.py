"""The participant that transforms gradients: at the optimizer's step, or as backward makes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from lightning_hooks.engine.change.bound import BoundTransform, match_saved
from lightning_hooks.engine.participant import Part, Participant, PhaseMemo
from lightning_hooks.engine.scaling import unscales_itself
from lightning_hooks.engine.shards import is_sharded, params_for, parts_of, put_back, refuse_sharded, takes_parts, wholes_of
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.rules.patterns import Target


class GradientChanger(Participant):
    """Runs transforms on gradients, in the order of their rules.

    Args:
        transforms: from `resolve_applies`.
        scale: gives the loss scale as a tensor, or None where there is no scaler.
        order: its position among the participants.
        rank: of this process.

    Attributes:
        step: the number of the step under way.
        reporting: whether transforms report on it.
        skipped_steps: how many optimizer steps transforms have skipped.
    """

    ever: str | None = "always"

    def __init__(
        self,
        transforms: Sequence[BoundTransform],
        *,
        scale: Callable[[], Tensor | None] = lambda: None,
        order: tuple[int, ...] = (0,),
        rank: int = 0,
    ) -> None:
        self.transforms = list(transforms)
        self.scale = scale
        self.order = order
        self.rank = rank
        self.step = 0
        self.reporting = False
        self.skipped_steps = 0
        self._at_step = [bound for bound in self.transforms if bound.when == "step"]
        self._may_skip = any(bound.may_skip for bound in self._at_step)

    @property
    def acts_at_step(self) -> bool:
        """Whether it changes the gradient of the optimizer's step."""
        return bool(self._at_step)

    def due(self, step: int, stage: str) -> Hashable | None:
        return "always" if self.transforms and stage == "train" else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self.step = step
        self.reporting = reporting
        for bound in self.transforms:
            bound.reseed(step, self.rank)
            bound.report.begin()

    def all_targets(self) -> Iterable[Target[Any]]:
        return (target for bound in self.transforms for target in bound.targets)

    def parts(self, key: Any) -> Iterable[Part]:
        """The transforms that act in backward."""
        for bound in self.transforms:
            of_module = bound.rule.modules is not None
            for target in bound.targets if of_module or bound.when == "backward" else ():
                at, parameter = (bound.tensor, None) if of_module else ("grad", target.value)
                yield Part(target.value, at, partial(self._change_gradient, bound, target, parameter), changes=True)

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Run the transforms that act at the step on the gradients of one optimizer."""
        if not self._at_step:
            return
        parameters = {p for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        with torch.no_grad():
            for bound in self._at_step:
                targets = [t for t in bound.targets if t.value in parameters]
                if targets:
                    self._change(bound, targets)
            if self._may_skip and self._skip_requested():
                self.skipped_steps += 1
                memo.skipped = True
                for parameter in parameters:
                    parameter.grad = None
        for bound in self._at_step:
            bound.context.skip_reason = None

    def _skip_requested(self) -> bool:
        """Whether a transform on any rank asks to skip the step. Collective; waits for the device."""
        requested = any(bound.context.skip_reason is not None for bound in self._at_step)
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return requested
        device = next((target.value.device for bound in self._at_step for target in bound.targets), None)
        anywhere = torch.tensor(float(requested), device=device)
        torch.distributed.all_reduce(anywhere, torch.distributed.ReduceOp.MAX)
        return bool(anywhere)

    def run(
        self,
        bound: BoundTransform,
        tensors: Sequence[Tensor],
        names: list[str],
        params: list[Tensor | None],
        *,
        owned: bool,
        apart: bool = False,
    ) -> list[Tensor]:
        """Run a transform; where the step is reported, measure what it did. Only the report counts as overhead.

        Args:
            bound: the transform.
            tensors: gradients or activations.
            names: of their targets.
            params: the parameters behind them.
            owned: whether it may overwrite the tensors.
            apart: whether every rank has other elements of them.
        """
        before = None
        if self.reporting:
            with self.account.meter.common, torch.no_grad():
                try:
                    before = bound.report.before(tensors, owned=owned)
                except Exception as error:
                    bound.cannot_report(tensors, names, error)
        results = bound.run([*tensors], names, params, self.step, owned=owned)
        if before is not None:
            with self.account.meter.common, torch.no_grad():
                try:
                    bound.report.after(before, results, factor=bound.context.factor, apart=apart)
                except Exception as error:
                    bound.cannot_report(tensors, names, error)
        return results

    def take_reports(self) -> dict[str, float]:
        out = {}
        for bound in self.transforms:
            for what, value in bound.report.finish().items():
                out[f"transform_{what}/{bound.index}_{bound.name}"] = value
        if self._may_skip:
            out["hooks/skipped_steps"] = float(self.skipped_steps)
        return out

    def state_dict(self) -> dict[str, Any]:
        """State, generators and counts of every transform."""
        return {"links": [bound.state_dict() for bound in self.transforms], "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint; transforms that changed start from their initial state, with one warning that names them."""
        self.skipped_steps = state.get("skipped_steps", 0)
        pairs, changed = match_saved(state["links"], self.transforms)
        if changed:
            warnings.warn(
                f"the transforms changed since the checkpoint; what changed restarts: {'; '.join(changed)}", stacklevel=2
            )
        for saved, bound in pairs:
            bound.load_state_dict(saved)

    def refuse_skipping(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse to skip steps of an optimizer that may change parameters without gradient.

        Raises:
            UnsupportedError: for LBFGS, and for an optimizer that is not torch's and does not say that it does.
        """
        for bound in self._at_step:
            for optimizer in optimizers if bound.may_skip else ():
                promises = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)
                if not (promises or getattr(optimizer, "skips_missing_gradients", False)):
                    raise UnsupportedError(
                        f"{bound.where}: {bound.name} skips a step by taking the gradients away, and "
                        f"{type(optimizer).__name__} is not known to keep parameters without a gradient, and their state, "
                        "unchanged. If it does, set skips_missing_gradients = True on it"
                    )

    def refuse_under_scaler(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse what is incorrect under a loss scaler.

        Raises:
            UnsupportedError: a repair in backward, or a step rule with an optimizer that unscales inside its step.
        """
        for bound in self.transforms:
            if bound.when == "backward" and getattr(bound.transform, "repairs_nonfinite", False):
                raise UnsupportedError(
                    f"{bound.where}: {bound.name} in backward would hide the overflow from the loss scaler, whose scale then "
                    "grows without end; use when='step' on params, or bf16-mixed"
                )
        fused = [type(o).__name__ for o in optimizers if unscales_itself(o)]
        if fused and self._at_step:
            raise UnsupportedError(
                f"{self._at_step[0].where}: {fused[0]}(fused=True) unscales inside its own step, so gradients are still "
                "scaled when the rule would act; use fused=False or when='backward'"
            )

    def _change_gradient(self, bound: BoundTransform, target: Target[Any], param: Tensor | None, grad: Tensor) -> Tensor | None:
        """The new gradient of a module or parameter, or None if it does not change.

        Under a loss scaler the transform sees float32 values divided by the scale; elements that are not finite stay so, since
        the scaler must see the overflow.
        """
        scale = self.scale()
        bound.refuse_transformed(grad, target.name)
        seen = grad if scale is None else grad.to(torch.promote_types(grad.dtype, torch.float32)) / scale
        (result,) = self.run(bound, [seen], [target.name], [param], owned=False)
        if result is seen:
            return None
        if scale is None:
            return result
        back = (result * scale).to(grad.dtype)
        return torch.where(torch.isfinite(grad), back, grad) if grad.layout is torch.strided else back

    def _change(self, bound: BoundTransform, targets: list[Target[Any]]) -> None:
        grads = [target.value.grad for target in targets]
        names = [target.name for target in targets]
        if any(map(is_sharded, grads)):
            self._change_sharded(bound, targets, grads, names)
            return
        results = self.run(bound, grads, names, [target.value for target in targets], owned=True)
        for grad, result in zip(grads, results, strict=True):
            if result is not grad:
                grad.copy_(result)  # in place: the reducer of DDP may hold views of these gradients

    def _change_sharded(self, bound: BoundTransform, targets: list[Target[Any]], grads: list[Tensor], names: list[str]) -> None:
        alone = takes_parts(bound.transform)
        seen = parts_of(grads) if alone else wholes_of(grads)
        params = params_for(bound.transform, [target.value.detach() for target in targets], f"{bound.where} ({bound.name})")
        results = self.run(bound, seen, names, params, owned=True, apart=alone)
        for grad, tensor, result in zip(grads, seen, results, strict=True):
            if is_sharded(grad) and not alone:
                put_back(grad, result)
            elif result is not tensor:
                tensor.copy_(result)

    def refuse_sharded(self) -> None:
        """Refuse rules on sharded parameters in backward.

        Raises:
            UnsupportedError: with the first such parameter.
        """
        for bound in self.transforms:
            if bound.when == "backward" and bound.rule.params is not None:
                refuse_sharded(bound.targets, bound.where, "the rule would do nothing. Use when='step', or a rule on modules")
