"""What lookouts have seen, as sentences in the message of a cause."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hooks.health.evidence import Evidence


def said(*kinds: str) -> Callable[[Evidence, int], str]:
    """The `detail` of a cause that tells the sightings of some kinds.

    Args:
        kinds: of sightings.

    Example:
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
