"""Rules on training and evaluation mode: norms that use old statistics or those of a few numbers, dropout of nothing or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.layers import layers_of
from lightning_hooks.health.roles import is_batch_norm, percent, roles_of
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_facts, no_optimizer, no_structure
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
        "Call `model.train()` after each evaluation that your code makes inside the training step.",
        "For small batches use GroupNorm or LayerNorm, or batch norms that are synchronised between ranks.",
    )
    source: ClassVar[str] = "evaluation mode: a definition; 4 elements: ours, with 2 only the signs of a difference are left"

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


def _no_dropout(evidence: Evidence) -> str | None:
    """An obstacle of a rule on dropout."""
    modules = () if evidence.structure is None else evidence.structure.modules
    return "the model has no dropout" if all(each.drop_rate is None for each in modules) else None


@dataclass(frozen=True, kw_only=True)
class DropoutTooHigh(HealthRule):
    """A module behind the first layer drops nearly all elements, so that hardly anything of its input reaches the loss.

    Dropout of the input itself may be high on purpose, as in autoencoders that learn to fill gaps, and is left out.

    Args:
        most: the smallest share of dropped elements that is too large.
    """

    most: float = 0.9
    patience: int = 2
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_structure, _no_dropout, no_facts)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look whether the number was meant as the share to keep: the argument of `Dropout` is the share to drop.",
        "Begin with 0.1 to 0.5.",
    )
    source: ClassVar[str] = "Srivastava et al. 2014 drop 20 to 50 % of hidden units, and underfit where they drop 90 %"

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        roles, structure = roles_of(evidence), evidence.structure
        high = [] if structure is None else [each for each in structure.modules if (each.drop_rate or 0.0) >= self.most]
        if not high or roles is None:
            return
        weighted = layers_of(evidence, roles).weighted
        for step, evaluating in _evaluating(evidence):
            for each in high:
                if each.drop_rate is not None and weighted.get(each.name) and each.name not in evaluating:
                    text = f"{percent(each.drop_rate)} of the elements are set to 0 at each step"
                    yield Symptom(each.name, tensor="", step=step, measured=each.drop_rate, threshold=self.most, text=text)


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


RULES: Final[tuple[HealthRule, ...]] = (NormStatistics(), EvaluationMode(), DropoutTooHigh())
"""The rules on modes, with their defaults."""
