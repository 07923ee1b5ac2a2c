"""Gaps: what runs between the calls of two layers. A trail has calls of layers only, so a bad number may come from there."""

from __future__ import annotations

from collections.abc import Collection

from lightning_hooks.recorder.record import Gap, Place

_MAX_NAMES = 4  # modules in a sentence


def between(first: str | None, second: str, codeless: Collection[str] = ()) -> tuple[str, ...]:
    """The modules whose own code can run after the call of one layer and before that of another, in this order.

    Args:
        first: the dotted name of the layer that was called first; None if no layer was.
        second: the name of the layer that was called next.
        codeless: modules without code of their own, such as `nn.Sequential`. The root always counts as code.

    Example:
        >>> between("body.attention.key", "body.head"), between(None, "body.head")
        (('body.attention', 'body'), ('', 'body'))
    """
    up, down = parents(second if first is None else first), parents(second)
    if first is None:
        return tuple(name for name in reversed(up) if not name or name not in codeless)
    if second in up:  # the second layer has called the first one
        return tuple(name for name in up[: up.index(second)] if name not in codeless)
    names, shared = [], [name for name in up if name in down]
    for name in up:
        if not name or name not in codeless:
            names.append(name)
            if name in shared:
                break
    # A parent without code stands for the next one above it, which calls both layers.
    below = down[: down.index(shared[0])] if shared else down
    return (*names, *(name for name in reversed(below) if name not in codeless))


def parents(name: str) -> list[str]:
    """The modules that hold a module, the nearest first and the root, '', last; none for the root.

    Example:
        >>> parents("a.b.c"), parents("")
        (['a.b', 'a', ''], [])
    """
    if not name:
        return []
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, -1, -1)]


def gap_text(place: Place, gap: Gap) -> str:
    """A sentence on what may have made the number: the layer, or the code around its call.

    Example:
        >>> gap_text(Place("head", "Linear", "forward", "output", 0, 0, 7), Gap("stem", "head", ("",)))
        'head made it, or code between the calls of stem and head, such as the forward of the model.'
    """
    example = f", such as the forward of {_names(gap.modules)}" if gap.modules else ""
    layer = place.module or "the model"
    if gap.joined:
        made = "it made the number" if place.direction == "forward" else "what reads that output made it"
        return (
            f"{gap.at} was called several times and these calls are noted together: in one of them {made}, or code around it."
        )
    if place.direction == "backward":
        if not place.module:
            return f"What reads that output made it{example or ', such as the loss'}."
        return f"What reads that output made it: {layer}, whose gradient was noted just before, or code{example}."
    if place.tensor == "loss":
        return f"The code that computes it{f' from the output of {gap.before}' if gap.before else ''} made it."
    where = f"between the calls of {gap.before} and {layer}" if gap.before else f"before the call of {layer}"
    where = f"between two calls of {layer}" if gap.before == layer else where
    return f"{layer} made it, or code {where}{example}."


def _names(modules: tuple[str, ...]) -> str:
    shown = [name or "the model" for name in modules[:_MAX_NAMES]]
    return " or ".join(shown)
