"""A transform bound to the parameters or modules that its rule matched: checks, state, report, and saving in a checkpoint."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.engine.changing.report import Report, keeps_direction
from lightning_hooks.engine.changing.saved import SavedTransform
from lightning_hooks.engine.participants.participant import ModuleRule
from lightning_hooks.errors import InPlaceError, TransformError, UnsupportedError
from lightning_hooks.nested.pytree import tree_map
from lightning_hooks.rules import Apply
from lightning_hooks.rules.patterns import Target, each_once
from lightning_hooks.saved_state import DamagedState, read_count, read_mapping, read_state, shown_value
from lightning_hooks.tensor_kinds import TRANSFORMED, elements, first_line, inside_transform, is_plain, kind_of, version_of
from lightning_hooks.transforms import Context, Transform
from lightning_hooks.transforms._contract import explain_invalid

# Keep the random streams of ranks and of steps apart. Any large primes work.
_RANK_STRIDE = 104_729
_STEP_STRIDE = 15_485_863
_SEEDS = 2**65  # bounds the seeds in checkpoints: greater than every seed of torch plus the offset of a transform


@dataclass
class BoundTransform:
    """One transform of one rule.

    Args:
        index: the number of the transform among all transforms of a model, for the tag.
        rule: the rule that names the transform.
        transform: called with tensors and a `Context`.
        targets: the parameters or modules it acts on.
        seed: the seed of its random generators.
        where: how a message names the transform: `apply[0].transform`.
        tensor: the tensor it changes: `grad` of a parameter; `output_grad`, `input_grad`, `output[0]`, … of a module.
        when: `step`, `backward`, or `forward` for activations.
    """

    index: int
    rule: Apply
    transform: Any
    targets: list[Target[Any]]
    seed: int
    where: str
    tensor: str = "grad"
    when: str = "step"

    def __post_init__(self) -> None:
        initial = self.transform.initial_state() if isinstance(self.transform, Transform) else {}
        self.context = Context(seed=self.seed, state=initial)
        self.report = Report(keeps_direction(self.transform))
        self.name = type(self.transform).__name__
        self.label = f"{self.where} ({self.name})"
        self.stages = self.rule.stages or ("train",)
        self._unreadable: set[str] = set()
        self.note_targets()

    def note_targets(self) -> None:
        """Called when targets hold other objects than before: an object that two targets hold is changed once."""
        self.distinct = each_once(self.targets)

    @property
    def acts_on(self) -> str:
        """The tensors that the transform changes, in words. A later run has the same words if the rule did not change."""
        of = "params" if self.rule.params is not None else "modules"
        patterns = getattr(self.rule, of)
        shown = repr(patterns) if isinstance(patterns, str) else repr(list(patterns))
        if of == "modules":
            return f"{self.tensor} of modules {shown}"
        return f"params {shown} in backward" if self.when == "backward" else f"params {shown}"

    @property
    def module_rule(self) -> ModuleRule:
        """The effect of a rule on modules, for the checks of a run."""
        where = f"{self.where.removesuffix('transform')}modules"
        if self.when == "forward":
            return ModuleRule(where, self.targets, "a changed activation", is_traceable=False)
        return ModuleRule(where, self.targets, "a changed gradient")

    @property
    def shown(self) -> str:
        """The `repr` of the transform without addresses of objects, which differ between processes."""
        return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(self.transform))

    @property
    def may_skip(self) -> bool:
        """Whether the transform may ask to skip the step."""
        return bool(getattr(self.transform, "needs_step", False))

    def reseed(self, step: int, rank: int) -> None:
        """Seed the generators for a step, differently on each rank, so that a resumed run draws the same numbers.

        Does nothing with `when="step"`, where the generators continue from step to step, equally on every rank.
        """
        if self.when != "step":
            self.context.seed = (self.seed + _RANK_STRIDE * rank + _STEP_STRIDE * step) % 2**63
            self.context.generators = {}

    def refuse_transformed(self, tensor: Tensor, name: str) -> None:
        """Refuse a tensor from inside a transform of `torch.func`, or from a batched backward."""
        if inside_transform(tensor):
            raise UnsupportedError(
                f"{self.where}: {self.name} cannot change the {self.tensor} of {name}, which is a {TRANSFORMED}: its values "
                "are not those of the training step, and state, random numbers and reports would be made of them. Exclude "
                f"{name} from the rule, or call the function without the hooks: with lightning_hooks.paused(model)"
            )

    def run(self, tensors: list[Tensor], names: list[str], params: list[Tensor | None], step: int, owned: bool) -> list[Tensor]:
        """Call the transform on gradients, or on activations, and check what it returns.

        Args:
            tensors: the tensors to change.
            names: the names of their targets.
            params: the parameters of these gradients; None for an activation or the gradient of one.
            step: the number of the training step.
            owned: whether the transform may overwrite the tensors.

        Raises:
            InPlaceError: the transform changed a tensor in place that it does not own.
            TransformError: the result cannot replace the tensors.
        """
        context = self.context
        context.params, context.names, context.step, context.owned = params, names, step, owned
        context.factor = None
        versions = [] if owned else [version_of(tensor) for tensor in tensors]
        try:
            # In a backward with create_graph=True autograd records the transform, so that a gradient penalty can differentiate
            # through the transform.
            with torch.no_grad() if self.when == "step" else contextlib.nullcontext():
                # Pass a copy of the list, because the transform may replace its items.
                results = self.transform([*tensors], context)
            if self.when == "backward" and torch.is_grad_enabled():
                context.state = _without_graph(context.state)
        # A StopIteration that reaches the training loop would end the epoch without a message.
        except StopIteration as error:
            raise TransformError(f"{self.where} ({self.transform!r}) raised StopIteration: {error}") from error
        except Exception as error:
            error.add_note(f"raised in {self.label}")
            raise
        finally:
            context.params, context.names = [], []
        if context.skip_reason is not None and not self.may_skip:
            context.skip_reason = None
            raise TransformError(
                f"{self.label} called skip_step; only a transform with needs_step = True may, with when='step'"
            )
        if not owned:
            for tensor, version, name in zip(tensors, versions, names, strict=True):
                if version_of(tensor) != version:
                    raise InPlaceError(
                        f"{self.label} changed {self._what(name)} in place. Other branches of the graph "
                        "share its memory and would silently see the change; return a new tensor instead"
                    )
        wrong = explain_invalid(results, tensors, lambda index: self._what(names[index]))
        if wrong is not None:
            raise TransformError(f"{self.label} {wrong}")
        return list(results)

    def cannot_report(self, tensors: Sequence[Tensor], names: Sequence[str], error: Exception) -> None:
        """Handle an error of a report: warn once per target whose tensor cannot be read; otherwise raise the error."""
        name, unreadable = next(((n, t) for n, t in zip(names, tensors, strict=True) if _may_be_unreadable(t)), ("", None))
        if unreadable is None:
            raise error
        if name not in self._unreadable:
            self._unreadable.add(name)
            warnings.warn(
                f"{self.where}: {self.name} does not report on the {self.tensor} of {name}: a {kind_of(unreadable)} cannot be "
                f"read: {first_line(error)}",
                stacklevel=2,
            )

    def _what(self, name: str) -> str:
        return f"the {self.tensor} of {name}" if self.when == "forward" else f"the gradient of {name}"

    def saved(self) -> SavedTransform:
        """What a checkpoint keeps of the transform."""
        generators = {key: generator.get_state() for key, generator in self.context.generators.items()}
        return SavedTransform(self.shown, self.acts_on, self.seed, self.context.state, generators, self.report.counts)

    def checked(self, saved: SavedTransform) -> Callable[[], None]:
        """Check what a checkpoint keeps of the transform, without changing anything.

        Returns:
            A function that continues from it.

        Raises:
            DamagedState: the transform cannot have saved it; the message names the transform.
        """
        try:
            seed = read_count(saved.seed, "seed", below=_SEEDS)
            state = read_state(saved.state, "state")
            self._check_state(state)
            # Only transforms with `when="step"` continue their generators. All others seed them at each step.
            generators = self._generators(saved.generators) if self.when == "step" else {}
        except ValueError as error:
            raise DamagedState(f"{self.label}: {error}") from error

        def proceed() -> None:
            self.seed = self.context.seed = seed
            self.context.state, self.context.generators = state, generators
            self.report.continue_from(saved.report)

        return proceed

    def _check_state(self, state: dict[str, Any]) -> None:
        if not isinstance(self.transform, Transform):
            return
        of_rule = self.targets if self.rule.params is not None else []
        try:
            self.transform.check_state(state, {target.name: target.value for target in of_rule})
        except ValueError:
            raise
        # `check_state` may be a method of the user's that fails on a damaged state.
        except Exception as error:
            raise DamagedState(f"check_state raised {type(error).__name__}: {error}") from error

    def _generators(self, saved: Any) -> dict[str, torch.Generator]:
        """The generators of a checkpoint, for the devices of this process."""
        generators: dict[str, torch.Generator] = {}
        for key, state in read_mapping(saved, "generators").items():
            try:
                device = self._device_for(torch.device(key))
                if device is not None and str(device) not in generators:
                    generators[str(device)] = torch.Generator(device).set_state(state)
            # Torch raises these errors if it does not know the device or cannot read the state.
            except (RuntimeError, TypeError) as error:
                reason = f"{shown_value(state)} is not the state of a generator ({first_line(error)})"
                raise DamagedState(f"generators[{key!r}]: {reason}") from error
        return generators

    def _device_for(self, saved: torch.device) -> torch.device | None:
        """The device of this process whose generator continues that of a device in a checkpoint; None if there is none.

        The checkpoint was saved by rank 0, whose device may not exist in this process. A device of another type draws other
        numbers, so its generator starts from the seed.
        """
        candidates = [target.value.device for target in self.targets if target.value.device.type == saved.type]
        return saved if saved in candidates else next(iter(candidates), None)


def _without_graph(state: dict[str, Any]) -> dict[str, Any]:
    detached: dict[str, Any] = tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, state)
    return detached


def _may_be_unreadable(tensor: Tensor) -> bool:
    return not is_plain(tensor) or elements(tensor) is None
