"""Rules on training and evaluation mode: norms that use old statistics or those of a few numbers, dropout of nothing or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.dropped_outputs import dropped_outputs
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Roles, is_batch_norm, percent, roles_of
from lightning_hooks.health.rule import HealthRule, Severity, Symptom, symptoms_where
from lightning_hooks.health.rules.base import Needs, Obstacles, held_for_steps, no_facts, no_optimizer, no_structure
from lightning_hooks.health.usage import is_named_copy, membership_of
from lightning_hooks.records.facts import ModuleFacts, StepFacts, Structure


@dataclass(frozen=True, kw_only=True)
class NormStatistics(HealthRule):
    """A batch norm normalises with statistics that are not those of enough data.

    It is in evaluation mode although an optimizer trains its own parameters; or it is in training mode and each channel has
    only a few numbers in a step. A norm of a frozen part of the model is left out.

    Args:
        least: the smallest number of elements of a channel.
        steps: the number of steps in a row at which there are fewer.
    """

    least: float = 4.0
    steps: int = 10
    patience: int = 2
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    needs: ClassVar[Needs] = (("output", "count"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Call `model.train()` before the loop, and after each evaluation that your code makes.",
        "For small batches use GroupNorm or LayerNorm, or batch norms that are synchronised between ranks.",
    )
    source: ClassVar[str] = "evaluation mode: a definition; 4 elements: ours, with 2 only the signs of a difference are left"
    consequence: ClassVar[str] = (
        "The norm uses stored statistics that do not fit the data, or statistics of so few numbers that they are mostly noise."
    )
    false_alarm: ClassVar[str] = (
        "A backbone that is fine-tuned with fixed statistics on purpose is told, if its norms still have trainable parameters. "
        "Freeze these, or accept it."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        if evidence.structure is not None and not _batch_norms(evidence.structure):
            return "the model has no batch norm"
        return None if reason is not None and "output" in reason else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        structure = evidence.structure
        if structure is None:
            return
        norms = _batch_norms(structure)
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            if facts is None or not facts.evaluating:
                continue
            evaluating, trained = set(facts.evaluating), _trained_modules(structure, facts)
            for name in norms:
                if name in evaluating and name in trained and not is_named_copy(name):
                    text = "a batch norm whose parameters are trained is in evaluation mode and uses its stored statistics"
                    yield Symptom(name, tensor="", step=step, measured=1.0, threshold=0.0, text=text)
        yield from self._few(evidence, norms)

    def _few(self, evidence: Evidence, norms: dict[str, int]) -> Iterator[Symptom]:
        output, facts = evidence.track("output", "count"), evidence.facts
        if output is None or facts is None:
            return
        evaluating = set(facts.evaluating)
        modules = evidence.structure.modules if evidence.structure is not None else ()
        synchronised = {each.name for each in modules if each.type == "SyncBatchNorm"}
        for column, name in enumerate(output.names):
            channels = norms.get(name, 0)
            if not channels or name in evaluating:
                continue
            counts = output.values[:, column]
            # `count` is summed over all ranks. A synchronised batch norm uses all of it, any other one the share of its rank.
            parts = (facts.accumulate or 1) * (1 if name in synchronised else evidence.ranks)
            last = counts[counts > 0][-self.steps :] / (channels * parts)
            if len(last) == self.steps and last.max() < self.least and counts[-1] > 0:
                text = f"this batch norm takes the mean and variance of {last.max():.3g} numbers in each channel"
                begin = int(output.steps[counts > 0][-self.steps])
                for step in evidence.new_steps.tolist():
                    yield Symptom(
                        name,
                        tensor="",
                        step=step,
                        measured=float(last.max()),
                        threshold=self.least,
                        text=text,
                        since=min(begin, step),
                    )


@dataclass(frozen=True, kw_only=True)
class EvaluationMode(HealthRule):
    """Dropout or batch norms are in evaluation mode while other modules train. That may be meant, so this is information."""

    severity: Severity = Severity.INFO
    patience: int = 2
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_structure, no_facts)
    next_steps: ClassVar[tuple[str, ...]] = (
        "If the module should act as in training, call `train()` on it after the code that evaluates.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "Dropout does not act and batch norms use stored statistics, so that the training differs from what its author planned."
    )
    false_alarm: ClassVar[str] = (
        "Keeping a pretrained part in evaluation mode is common practice, so that the finding is information."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        structure = evidence.structure
        modes = [] if structure is None else [each.name for each in structure.modules if _has_mode(each)]
        for step, evaluating in _evaluating(evidence) if modes else ():
            for name in modes:
                if name in evaluating:
                    yield Symptom(
                        name,
                        tensor="",
                        step=step,
                        measured=1.0,
                        threshold=0.0,
                        text="this module is in evaluation mode during training",
                    )


@dataclass(frozen=True, kw_only=True)
class DropoutTooHigh(HealthRule):
    """Nearly all elements behind the first layer are dropped, so that hardly anything reaches the loss.

    The share of a module is known from its arguments; dropouts with no layer between them count together. A dropout that is no
    module shows in the input of the next layer: nearly all of it is 0, and yet its root mean square is larger than that of the
    output before, because dropout scales what it keeps. Neither an activation nor a mask does that. One that code puts behind a
    layer as a hook shows in the output of the layer: most of it is 0, in other elements each time, and the rest is larger than
    the layer can make it.
    Dropout of the input itself may be high on purpose, as in autoencoders that learn to fill gaps, and is left out.

    Args:
        most: the smallest share of dropped elements that is too large.
        lasting: the number of steps for which an input must be so.
    """

    most: float = 0.9
    lasting: int = 10
    patience: int = 2
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_structure, no_facts)
    needs: ClassVar[Needs] = tuple(
        (tensor, stat) for tensor in ("input", "output") for stat in ("zero_fraction", "rms", "count")
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look whether the number was meant as the share to keep: the argument of a dropout is the share to drop.",
        "Begin with 0.1 to 0.5.",
    )
    source: ClassVar[str] = "Srivastava et al. 2014 drop 20 to 50 % of hidden units, and underfit where they drop 90 %"
    consequence: ClassVar[str] = (
        "So few elements are left that the layers behind hardly see the input, and the loss falls slowly or not at all."
    )
    false_alarm: ClassVar[str] = (
        "A wide representation of which few elements suffice can learn with such a dropout. Accept the finding if the loss "
        "falls."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason, structure = super().can_run(evidence), evidence.structure
        has_dropout = structure is not None and any(each.drop_rate for each in structure.modules)
        # The arguments of modules are known without any measurement.
        return None if has_dropout and evidence.facts is not None else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        roles = roles_of(evidence)
        if roles is None:
            return
        high = roles.remember("dropped", evidence.order, lambda: self._dropped(evidence, roles))
        for step, evaluating in _evaluating(evidence) if high else ():
            for name, share in high.items():
                if name not in evaluating and share >= self.most:
                    text = f"{percent(share)} of the elements are set to 0 at each step"
                    yield Symptom(name, tensor="", step=step, measured=share, threshold=self.most, text=text)
        yield from self._of_functions(evidence, roles)
        yield from self._of_hooks(evidence, roles)

    def _dropped(self, evidence: Evidence, roles: Roles) -> dict[str, float]:
        """The share that each dropout behind the first layer drops, together with those that ran since the last layer."""
        dropped: dict[str, float] = {}
        kept, is_behind = 1.0, False
        for name in evidence.order:
            module = roles.modules.get(name)
            rate = (module.drop_rate or 0.0) if module is not None else 0.0
            if roles.weight(name) is not None:
                is_behind, kept = True, 1.0
            if rate and is_behind:
                kept = kept * (1 - rate) if roles.role(name) == "dropout" else 1 - rate
                dropped[name] = 1 - kept
        return dropped

    def _of_functions(self, evidence: Evidence, roles: Roles) -> Iterator[Symptom]:
        zeros = evidence.track("input", "zero_fraction")
        if zeros is None or not (zeros.values[zeros.new] >= self.most).any():
            return
        tracks = [track for need in self.needs[1:] if (track := evidence.track(*need)) is not None]
        if len(tracks) < len(self.needs) - 1:
            return
        sizes, counts, *outputs = tracks
        names = roles.remember("before", (*evidence.order, "", *zeros.names), lambda: _before(evidence, roles, zeros.names))
        columns = columns_of(outputs[0].names, names)
        before, before_sizes, before_counts = (np.where(columns >= 0, track.values[:, columns], np.nan) for track in outputs)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = (zeros.values - before) / (1 - before)
            dropped = (share >= self.most) & (sizes.values > before_sizes) & (counts.values == before_counts)
        lasts = held_for_steps(zeros, dropped, self.lasting)
        yield from symptoms_where(zeros._replace(values=share), lasts, self.most, _of_input, dropped)

    def _of_hooks(self, evidence: Evidence, roles: Roles) -> Iterator[Symptom]:
        found = dropped_outputs(evidence, roles, self.most)
        if found is not None:
            zeros, dropped = found
            yield from symptoms_where(zeros, held_for_steps(zeros, dropped, self.lasting), self.most, _of_output, dropped)


@dataclass(frozen=True, kw_only=True)
class EvaluationInTrainingMode(HealthRule):
    """The model is called without gradients in training mode: dropouts drop elements, and batch norms learn from the batches.

    The usual reason is a validation without `eval()`, whose numbers are then those of another model. Rollouts and pseudo-labels
    may be made so on purpose, so that this is information. Teachers, which no call with gradients reaches, activation
    checkpointing and `update_bn` are not told, nor compiled models.
    """

    severity: Severity = Severity.INFO
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("evaluated-in-training-mode",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Call `model.eval()` before a validation and `model.train()` after it; `torch.no_grad()` does not do that.",
    )
    source: ClassVar[str] = "a definition; at three calls in a row, because a target or a pseudo-label is one call in each step"
    consequence: ClassVar[str] = (
        "The validation judges a model that drops elements at random, and batch norms learn from the validation data."
    )
    false_alarm: ClassVar[str] = (
        "Rollouts, pseudo-labels and samples for an uncertainty may be computed in training mode on purpose, so that the "
        "finding is information."
    )


@dataclass(frozen=True, kw_only=True)
class DropoutInEvaluation(HealthRule):
    """A dropout by function drops elements in evaluation mode, because it is not told the mode.

    `F.dropout` drops unless it is told `training=False`. A call with `training=True`, as one that samples on purpose, is not
    told, nor a compiled model.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("dropout-in-evaluation",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Write `F.dropout(x, p, training=self.training)`, or use `nn.Dropout`.",
        "If the model is to drop elements in evaluation, say so: `training=True`.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "The validation and each later use of the model drop elements at random, so that the same input gives other outputs "
        "each time."
    )
    false_alarm: ClassVar[str] = (
        "A model that samples with dropout is told if it relies on the default of `F.dropout`: write `training=True`."
    )


def _of_output(share: float) -> str:
    return f"{percent(share)} of the output is 0, in other elements at each step, and the rest is larger, as behind a dropout"


def _of_input(share: float) -> str:
    return f"{percent(share)} of what the module before gave is 0 in the input, and the rest is larger, as behind a dropout"


def _before(evidence: Evidence, roles: Roles, names: tuple[str, ...]) -> list[str]:
    """For each module with weights but the first the module that ran directly before it; empty for all others."""
    order = evidence.order
    layers = [name for name in order if roles.weight(name) is not None]
    previous = dict(zip(order[1:], order, strict=False))
    return [previous.get(name, "") if name in layers[1:] else "" for name in names]


def _evaluating(evidence: Evidence) -> Iterator[tuple[int, set[str]]]:
    """The names of the modules in evaluation mode at each new step; none if unknown."""
    for step in evidence.new_steps.tolist():
        facts = evidence.facts_at(step)
        yield step, set(facts.evaluating) if facts is not None else set()


def _has_mode(module: ModuleFacts) -> bool:
    return module.role == "dropout" or is_batch_norm(module)


def _batch_norms(structure: Structure) -> dict[str, int]:
    """The batch norms of a model, each with its number of channels; 0 if it has no parameters."""
    names = {each.name for each in structure.modules if is_batch_norm(each)}
    channels = dict.fromkeys(names, 0)
    for each in structure.parameters:
        if each.module in names and len(each.shape) == 1:
            channels[each.module] = each.shape[0]
    return channels


def _trained_modules(structure: Structure, facts: StepFacts) -> set[str]:
    """The modules of which a parameter is held by an optimizer with a rate above 0, and not frozen."""
    members, frozen = membership_of(facts), set(facts.frozen)
    rates = members.lr_of
    return {
        each.module for each in structure.parameters if each.name in rates and rates[each.name] != 0 and each.name not in frozen
    }


RULES: Final[tuple[HealthRule, ...]] = (
    *(NormStatistics(), EvaluationMode(), DropoutTooHigh()),
    *(EvaluationInTrainingMode(), DropoutInEvaluation()),
)
"""The rules on modes, with their defaults."""
