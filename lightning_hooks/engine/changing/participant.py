"""The participant that runs transforms: on activations, on gradients as backward makes them, and at the optimizer's step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.codec import decode
from lightning_hooks.engine.changing.activations import ForwardChange
from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.engine.changing.saved import SavedTransforms, match_saved
from lightning_hooks.engine.participants.actions import AbsentParts
from lightning_hooks.engine.participants.participant import ModuleRule, Participant, PhaseMemo
from lightning_hooks.engine.participants.shards import params_for, put_back, shards_of, share_of, takes_shards
from lightning_hooks.hooks import Action
from lightning_hooks.rules import parse_tensor
from lightning_hooks.rules.patterns import Target
from lightning_hooks.stats.processes import world_size
from lightning_hooks.tensor_kinds import is_sharded, whole
from lightning_hooks.transforms._contract import without_aliases


class TransformParticipant(Participant):
    """Runs transforms, in the order of their rules.

    Args:
        transforms: the bound transforms, from `resolve_applies`.
        scale: returns the loss scale as a tensor, or None if there is no scaler.
        rank: the rank of this process.
        alone: whether this process is the only one, even if a process group exists.

    Attributes:
        step: the number of the current training step, which transforms get in other stages too.
        batches: a counter that changes when a batch begins; it may grow by more than one.
        skipped_steps: how many optimizer steps transforms have skipped.
    """

    def __init__(
        self,
        transforms: Sequence[BoundTransform],
        *,
        scale: Callable[[], Tensor | None] = lambda: None,
        rank: int = 0,
        alone: bool = False,
    ) -> None:
        self.transforms = list(transforms)
        self.scale = scale
        self.rank = rank
        self.alone = alone
        self.step = 0
        self.batches = 0
        self.skipped_steps = 0
        self.absent = AbsentParts()
        # Inside compiled code only gradients can be changed: rules that change activations (`when="forward"`) are refused
        # there.
        self.graph_key = tuple(i for i, bound in enumerate(self.transforms) if bound.when != "forward") or None
        self._is_reporting = False  # whether the reports of the current training step are written
        # While a batch of another stage runs inside a training step: the seed and the generators of each transform in the step.
        self._set_aside: list[tuple[int, dict[str, torch.Generator]]] = []
        self._at_step = [bound for bound in self.transforms if bound.when == "step"]
        self.acts_before = bool(self._at_step)
        self._may_skip = any(bound.may_skip for bound in self._at_step)

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return tuple(i for i, bound in enumerate(self.transforms) if stage in bound.stages) or None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        if stage == "train":
            self.step = step
            self._is_reporting = reporting
            for bound in self.transforms:
                bound.report.begin()
        # A validation may run inside an accumulated training step, which must then continue with its own generators.
        elif not self._set_aside:
            self._set_aside = [(bound.context.seed, bound.context.generators) for bound in self.transforms]
        for bound in self.transforms:
            bound.reseed(step, self.rank)

    def begin_batch(self) -> None:
        self.batches += 1

    def end_step(self) -> None:
        for bound, kept in zip(self.transforms, self._set_aside, strict=False):
            bound.context.seed, bound.context.generators = kept
        self._set_aside = []
        self.absent.warn()

    def all_targets(self) -> Iterable[Target[Any]]:
        return (target for bound in self.transforms for target in bound.targets)

    def refreshed(self) -> None:
        for bound in self.transforms:
            bound.note_targets()

    def changes(self) -> Iterable[tuple[int, str]]:
        return ((id(target.value), parse_tensor(bound.tensor)[0]) for bound in self.transforms for target in bound.targets)

    def actions(self, key: Any) -> Iterable[Action]:
        for bound in (self.transforms[i] for i in key):
            tensor, path = parse_tensor(bound.tensor)
            for target in bound.distinct if bound.when != "step" else ():
                if bound.when == "forward":
                    change = ForwardChange(self, bound, target).change
                    absent = partial(self.absent.note, f"{bound.where}: {bound.tensor!r}", target.name)
                    yield Action(target.value, tensor, change, path, changes=True, absent=absent)
                else:
                    change_gradient = partial(self._change_gradient, bound, target)
                    yield Action(target.value, tensor, change_gradient, path, changes=True)

    def module_rules(self, key: Any = None) -> Iterable[ModuleRule]:
        for bound in self.transforms if key is None else (self.transforms[i] for i in key):
            if bound.rule.modules is not None:
                yield bound.module_rule

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        # If gradients are still multiplied by the loss scale here, the scaler is about to skip the step.
        if not self._at_step or memo.scale is not None:
            return
        parameters = {p for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        with torch.no_grad():
            for bound in self._at_step:
                targets = [t for t in bound.distinct if t.value in parameters]
                if targets:
                    self._change(bound, targets)
            if self._may_skip and self._skip_requested():
                self.skipped_steps += 1
                memo.skipped = True
                for parameter in parameters:
                    parameter.grad = None
        for bound in self._at_step:
            bound.context.skip_reason = None

    def run(
        self,
        bound: BoundTransform,
        tensors: Sequence[Tensor],
        names: list[str],
        params: list[Tensor | None],
        *,
        owned: bool = False,
        report: bool = True,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        """Run a transform, and measure what it did if the step is reported.

        Args:
            bound: the transform.
            tensors: gradients or activations.
            names: the names of their targets.
            params: the parameters of these gradients; None for an activation or the gradient of one.
            owned: whether the transform may overwrite the tensors.
            report: False for a repeated call, which is not reported again.
            shares: passed on to `Report.after`.
        """
        before = None
        if report and self._is_reporting and not self._set_aside:
            with self._measuring(bound, tensors, names):
                before = bound.report.before(tensors, owned=owned)
        results = bound.run([*tensors], names, params, self.step, owned=owned)
        if before is not None:
            with self._measuring(bound, tensors, names):
                bound.report.after(before, results, factor=bound.context.factor, shares=shares)
        return results

    def take_reports(self) -> dict[str, float]:
        out = {}
        for bound in self.transforms:
            for what, value in bound.report.finish().items():
                out[f"transform_{what}/{bound.index}_{bound.name}"] = value
        if self._may_skip:
            out["run/skipped_steps"] = float(self.skipped_steps)
        return out

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the transforms; plain values, and the tensors of their states."""
        links = [bound.saved() for bound in self.transforms]
        return {
            "links": [{**vars(link), "report": {**vars(link.report)}} for link in links],
            "skipped_steps": self.skipped_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; transforms that changed start from their initial state, with one warning that names them.

        Raises:
            ValueError: the state is damaged; nothing is then changed.
        """
        saved = decode(SavedTransforms, state, "state")
        pairs, changed = match_saved(saved.links, self.transforms)
        proceeds = [bound.checked(link) for link, bound in pairs]
        if changed:
            warnings.warn(
                f"the transforms changed since the checkpoint; what changed restarts: {'; '.join(changed)}", stacklevel=2
            )
        self.skipped_steps = saved.skipped_steps
        for proceed in proceeds:
            proceed()

    def _skip_requested(self) -> bool:
        """Whether a transform on any rank asks to skip the step. Collective; waits for the device."""
        requested = any(bound.context.skip_reason is not None for bound in self._at_step)
        if world_size(self.alone) == 1:
            return requested
        device = next((target.value.device for bound in self._at_step for target in bound.targets), None)
        anywhere = torch.tensor(float(requested), device=device)
        torch.distributed.all_reduce(anywhere, torch.distributed.ReduceOp.MAX)
        return bool(anywhere)

    def _change_gradient(self, bound: BoundTransform, target: Target[Any], grad: Tensor) -> Tensor | None:
        """The new gradient of a parameter, or of a module's input or output; None if it does not change.

        Under a loss scaler the transform gets float32 values divided by the scale. Elements that are not finite stay so,
        because the scaler must find the overflow.
        """
        scale = self.scale()
        bound.refuse_transformed(grad, target.name)
        unscaled = grad if scale is None else grad.to(torch.promote_types(grad.dtype, torch.float32)) / scale
        param = target.value if isinstance(target.value, Tensor) else None
        (result,) = self.run(bound, [unscaled], [target.name], [param])
        if result is unscaled:
            return None
        if scale is None:
            return result
        back = (result * scale).to(grad.dtype)
        return _with_overflow(back, grad)

    def _change(self, bound: BoundTransform, targets: list[Target[Any]]) -> None:
        """Change the gradients of parameters in place, because the reducer of DDP may hold views of them."""
        grads = [target.value.grad for target in targets]
        names = [target.name for target in targets]
        params: list[Tensor | None] = [target.value for target in targets]
        sharded = any(map(is_sharded, grads))
        gathered = sharded and not takes_shards(bound.transform)
        tensors = [whole(grad) for grad in grads] if gathered else shards_of(grads)
        if sharded:
            params = params_for(bound.transform, [target.value.detach() for target in targets], bound.label)
        # Decide by all targets, not by those of this optimizer: if only one optimizer holds sharded parameters, the calls of
        # both in a step must still report in the same way.
        in_shards = takes_shards(bound.transform) and any(is_sharded(target.value) for target in bound.targets)
        shares = [share_of(grad, world_size()) for grad in grads] if in_shards else None
        results = self.run(bound, tensors, names, params, owned=True, shares=shares)
        for grad, tensor, result in zip(grads, tensors, without_aliases(results, tensors), strict=True):
            if gathered and is_sharded(grad):
                put_back(grad, result)
            elif result is not tensor:
                tensor.copy_(result)

    @contextmanager
    def _measuring(self, bound: BoundTransform, tensors: Sequence[Tensor], names: Sequence[str]) -> Iterator[None]:
        """Surrounds the measuring for a report. Its time counts as overhead; that of the transform does not."""
        with self.account.meter.common, torch.no_grad():
            try:
                yield
            except Exception as error:
                bound.cannot_report(tensors, names, error)


def _with_overflow(result: Tensor, grad: Tensor) -> Tensor:
    """The result, with the elements of the gradient that are not finite put back."""
    if grad.layout is torch.strided:
        return torch.where(torch.isfinite(grad), result, grad)
    if grad.layout is not torch.sparse_coo:
        return result
    stored = grad.coalesce()
    broken = torch.where(stored.values().isfinite(), 0.0, stored.values())
    # Reading the answer waits for the device, as `coalesce` has done already.
    if not broken.any():
        return result
    return result + torch.sparse_coo_tensor(stored.indices(), broken, stored.shape, check_invariants=False)
