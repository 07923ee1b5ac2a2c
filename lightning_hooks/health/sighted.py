"""What lookouts have seen: as the steps of a rule, and as sentences in the message of a cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hooks.health.evidence import Evidence
    from lightning_hooks.records.facts import Sighting


def has_looked_for(evidence: Evidence, kinds: tuple[str, ...]) -> bool:
    """Whether a lookout of the run looks for one of these kinds of sightings; False for a run without its facts."""
    return evidence.facts is not None and not set(kinds).isdisjoint(evidence.facts.looked_for)


def sightings_in(evidence: Evidence, kinds: tuple[str, ...]) -> Iterator[tuple[int, Sighting]]:
    """The sightings of these kinds at each of the new steps, with the step."""
    steps = evidence.new_steps.tolist()
    if not steps or evidence.kinds_since(steps[0]).isdisjoint(kinds):
        return
    for step in steps:
        facts = evidence.facts_at(step)
        yield from ((step, each) for each in (() if facts is None else facts.sightings) if each.kind in kinds)


def said(*kinds: str) -> Callable[[Evidence, int], str]:
    """The `detail` of a cause that tells the sightings of some kinds.

    Args:
        kinds: of sightings.

    Example:
        >>> from lightning_hooks.health.evidence import Evidence
        >>> from lightning_hooks.records.facts import Sighting, StepFacts
        >>> evidence = Evidence()
        >>> evidence.facts = StepFacts(sightings=(Sighting("late", "the schedule ends late"), Sighting("kept", "it is kept")))
        >>> said("late")(evidence, 0)
        ' The schedule ends late.'
    """

    def detail(evidence: Evidence, begin: int) -> str:
        facts = evidence.facts
        texts = [each.text for each in (() if facts is None else facts.sightings) if each.kind in kinds]
        return "".join(f" {text[:1].upper()}{text[1:]}." for text in texts)

    return detail
