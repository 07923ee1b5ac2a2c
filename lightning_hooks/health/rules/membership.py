"""Rules on membership: the optimizers hold the parameters that the model trains, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.errors import counted
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import is_batch_norm, roles_of
from lightning_hooks.health.row_names import user_name
from lightning_hooks.health.rule import HealthRule, Kind, Severity, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_facts, no_optimizer, no_structure, one_rank
from lightning_hooks.health.usage import frozen_and_held, has_any, is_named_copy, membership_of, trainable, unheld
from lightning_hooks.records.facts import StepFacts, Structure


@dataclass(frozen=True, kw_only=True)
class NotInOptimizer(HealthRule):
    """A gradient reaches a trainable parameter that no optimizer holds.

    The gradient of the module's output is the witness: a target network, which no gradient reaches, is left out on purpose.
    Modules whose names say so (`teacher`, `lpips`, …) are left out too, and so are batch norms if the optimizers hold all else
    that gets a gradient: `BaseFinetuning(train_bn=False)` leaves out just these.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    needs: ClassVar[Needs] = (("output_grad", "abs_max"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Create the optimizer from `self.parameters()`, after the last change of the model.",
        "If the parameter is to stay as it is, call `requires_grad_(False)` on it.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "The parameter keeps its first values. The model trains around it, usually reaches a worse loss, and nothing raises an "
        "error."
    )
    false_alarm: ClassVar[str] = (
        "A part that is trained by another optimizer, which the monitor does not know, looks the same. In a plain loop, pass "
        "all optimizers to `instrument`."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        structure = evidence.structure
        if structure is None:
            return
        modules: dict[str, str] = {}
        norms: set[str] = set()
        reached: dict[str, dict[int, bool]] = {}
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            if facts is None or not facts.optimizers:
                continue
            left_out = []
            for name in unheld(structure, facts):
                if not modules:
                    modules = {each.name: each.module for each in structure.parameters}
                    norms = {each.name for each in structure.modules if is_batch_norm(each)}
                module = modules[name]
                if module not in reached:
                    above = has_any(evidence.track("output_grad", "abs_max"), module)
                    steps = evidence.steps.tolist()
                    reached[module] = {} if above is None else dict(zip(steps, above.tolist(), strict=True))
                if reached[module].get(step, False):
                    left_out.append(name)
            if all(modules[name] in norms for name in left_out):
                continue
            text = "no optimizer holds this parameter, which gets a gradient"
            for name in left_out:
                yield Symptom(name, tensor="", step=step, measured=0.0, threshold=1.0, text=text)


@dataclass(frozen=True, kw_only=True)
class StrangerInOptimizer(HealthRule):
    """An optimizer holds parameters that are not in the model.

    An optimizer that holds nothing of the model is no fault by itself: it may train the temperature of SAC. It is one if at
    the same time no optimizer holds some trainable parameters of the model. In a plain loop the model may be a part of what is
    trained, so only the latter counts there.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Create the optimizer after the last change of the model: a layer may have been replaced or copied since.",
        "Assign a layer that belongs to the model as its attribute, so that it is saved and moved with the model.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "The optimizer updates tensors that the model no longer uses, while the layers in use stay untrained."
    )
    false_alarm: ClassVar[str] = (
        "An optimizer may hold extra parameters on purpose, such as a loss with weights of its own. Make that part an "
        "attribute of the model, or accept the finding."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            strangers = () if facts is None else membership_of(facts).strangers
            if facts is None or not any(strangers):
                continue
            held = membership_of(facts).optimizer_of
            left = 0 if evidence.structure is None else len({*map(user_name, unheld(evidence.structure, facts))})
            for number, count in enumerate(strangers):
                is_mixed = facts.precision is not None and number in held.values()
                if count and (left or is_mixed):
                    yield Symptom(
                        "",
                        tensor="",
                        step=step,
                        measured=float(count),
                        threshold=0.0,
                        text=_strange(number, facts, count, left),
                    )


def _strange(number: int, facts: StepFacts, count: int, left: int) -> str:
    which = f"optimizer {number} ({facts.optimizers[number].type})"
    text = f"{which} holds {counted(count, 'parameter')} that the model does not have"
    return f"{text}, while no optimizer holds {counted(left, 'parameter')} of the model" if left else text


def _nothing_frozen(evidence: Evidence) -> str | None:
    """An obstacle of a rule on frozen parameters."""
    return "no parameter is frozen" if evidence.facts is not None and not evidence.facts.frozen else None


@dataclass(frozen=True, kw_only=True)
class FrozenMoves(HealthRule):
    """Code writes to a frozen parameter at step after step, while layers of its kind beside it are trained.

    A part of the model that is frozen as a whole may be the average of another part (BYOL, MoCo), and is not judged. A mask or
    a limit of weights writes too, perhaps the same numbers, and only the device knows these. So this is information.
    """

    severity: Severity = Severity.INFO
    patience: int = 3
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure, _nothing_frozen)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Search for code that writes to the weight: `copy_`, `mul_`, `clamp_`, a moving average, tied weights.",
        "Give the optimizer only parameters with `requires_grad=True`, because weight decay may act on the others.",
    )
    source: ClassVar[str] = "a definition; at 3 steps in a row, because code may load weights at single ones"
    consequence: ClassVar[str] = (
        "A part of the model that is meant to stay fixed drifts, so that what was learned before is lost."
    )
    false_alarm: ClassVar[str] = (
        "A mask, a clamp or a projection may write the same numbers at each step: only the write is seen, not the numbers. "
        "This is why the finding is information."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        roles, structure, last = roles_of(evidence), evidence.structure, evidence.facts
        if roles is None or structure is None or last is None or not last.written:
            return
        families = roles.remember("families", (), lambda: _families(structure))
        held = membership_of(last).optimizer_of
        trained = {families[name] for name in trainable(structure, last) if name in held}
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            for name in () if facts is None else facts.written:
                if families.get(name) in trained and not is_named_copy(name):
                    text = "code writes to this frozen parameter, while layers beside it are trained"
                    yield Symptom(name, tensor="", step=step, measured=1.0, threshold=0.0, text=text)


@dataclass(frozen=True, kw_only=True)
class FrozenHeld(HealthRule):
    """An optimizer holds parameters that are frozen, so that it does not train them.

    `nn.Embedding.from_pretrained` freezes the vectors that it is given unless it is told not to. A part may be frozen on
    purpose and given to the optimizer with all others, or be unfrozen later: it is information until the loss stands still.

    Args:
        most: parameters that are named one by one; of more only their number is told.
    """

    most: int = 4
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    next_steps: ClassVar[tuple[str, ...]] = (
        "If the parameter is to be trained, call `requires_grad_(True)` on it: `nn.Embedding.from_pretrained(…)` freezes its "
        "vectors without `freeze=False`.",
        "If it is frozen on purpose, give the optimizer only parameters with `requires_grad=True`.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "The optimizer never changes the frozen parameters. If they were meant to be trained, the model keeps their first "
        "values."
    )
    false_alarm: ClassVar[str] = (
        "Passing `model.parameters()` to the optimizer with a part frozen on purpose is common and harmless. The finding stays "
        "information as long as the loss falls."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        structure = evidence.structure
        if structure is None:
            return
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            names = [] if facts is None or not facts.frozen else frozen_and_held(structure, facts)
            if facts is None or not names:
                continue
            held = len(membership_of(facts).optimizer_of)
            if len(names) > self.most:
                text = f"{len(names)} of {held} parameters that optimizers hold are frozen (requires_grad=False)"
                yield Symptom("", tensor="", step=step, measured=float(len(names)), threshold=0.0, text=text)
                continue
            for name in names:
                text = "it is frozen (requires_grad=False), though an optimizer holds it"
                yield Symptom(name, tensor="", step=step, measured=1.0, threshold=0.0, text=text)


def _families(structure: Structure) -> dict[str, tuple[str, str]]:
    """The family of each parameter: the parent of its module, and the class of its module."""
    types = {each.name: each.type for each in structure.modules}
    return {each.name: (each.module.rpartition(".")[0], types.get(each.module, "")) for each in structure.parameters}


@dataclass(frozen=True, kw_only=True)
class ReplicasDiffer(HealthRule):
    """Parameters differ between ranks that are to train the same model."""

    severity: Severity = Severity.CRITICAL
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_facts, one_rank)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for a change of weights that only some ranks make, and for branches on the rank in the training step.",
        "Resume from a checkpoint that was saved before the ranks differed.",
    )
    source: ClassVar[str] = "a definition: checksums of parameters must be equal on all ranks"
    consequence: ClassVar[str] = (
        "Each rank then computes the gradient of another model. Their average trains none of them, and a checkpoint holds only "
        "one."
    )
    false_alarm: ClassVar[str] = (
        "Parameters that are meant to differ between ranks, such as experts of each rank, look the same. Accept the finding "
        "for these parameters."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            for name in () if facts is None else facts.apart:
                yield Symptom(
                    name, tensor="", step=step, measured=1.0, threshold=0.0, text="this parameter is not the same on all ranks"
                )


RULES: Final[tuple[HealthRule, ...]] = (NotInOptimizer(), StrangerInOptimizer(), FrozenMoves(), FrozenHeld(), ReplicasDiffer())
"""The rules on membership, with their defaults."""
