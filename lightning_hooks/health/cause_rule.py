"""One line of the table of causes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.finding import Confidence, Finding
from lightning_hooks.health.harm import JUMP


class Entry(NamedTuple):
    """Which findings an entry of the table stands for.

    Args:
        rule: the name of the rule.
        tensor: one of the tensors at which the finding was seen; None for any.
        side: `>` for a measurement above its threshold, `<` for one below; None for either.
        twice: whether the loss or a second row must show what the finding says.
    """

    rule: str
    tensor: str | None = None
    side: str | None = None
    twice: bool = False

    def matches(self, finding: Finding) -> bool:
        """Whether a finding is one of these."""
        tensors = (None, finding.tensor, *finding.tensors)
        if finding.rule != self.rule or self.tensor not in tensors:
            return False
        if self.twice and len(finding.rows) < 2 and not finding.harm.startswith(JUMP):
            return False
        if self.side is None or not finding.evidence:
            return True
        clearest = finding.evidence[0]
        return clearest.measured > clearest.threshold if self.side == ">" else clearest.measured < clearest.threshold


@lru_cache(maxsize=256)
def entry_of(text: str) -> Entry:
    """An entry of the table from its text: `LossSpike`, `NonFinite@input`, `PoorInitialization>`, `GradientSpike+`.

    Example:
        >>> entry_of("NonFinite@input")
        Entry(rule='NonFinite', tensor='input', side=None, twice=False)
        >>> entry_of("PoorInitialization>").side, entry_of("GradientSpike+").twice
        ('>', True)
    """
    end = text[-1:]
    rule, _, tensor = text.rstrip("<>+").partition("@")
    if not rule.isidentifier():
        raise RuleError(
            f"an entry of a cause must be the name of a rule, with '@' tensor, '<', '>' or '+' behind it, got {shown(text)}"
        )
    return Entry(rule, tensor or None, end if end in ("<", ">") else None, twice=end == "+")


@dataclass(frozen=True, kw_only=True)
class CauseRule:
    """A reason of findings. Findings are given by the names of their rules, as `entry_of` reads them.

    Args:
        name: of the cause.
        message: what is wrong; `{where}` and `{step}` stand for the rows and the first step of the decisive findings.
        required: each of these must be there.
        any_of: at least one of these must be there, unless there are none.
        supporting: findings that the cause explains if they are there.
        excluding: if one of these is there, the cause does not explain the findings.
        next_steps: what to try.
        alternatives: other explanations, each with how to tell it apart.
        confidence: `possible` becomes `likely` if findings of two rules agree.
        detail: of the steps before the decisive findings began, given the first step of these: sentences with numbers, which
            are added to the message; None for none. It is asked once, as `history` is, since the window holds these steps for
            some time only.
        while_standing: whether the decisive findings must stand, because the message says what is so now.
        same_rows: whether supporting findings must be about the modules of the decisive ones.
        condition: of the facts of the run; None for none.
        history: a condition of the steps before the decisive findings began, which is given the first step of these; None for
            none.

    Example:
        >>> rule = CauseRule(name="Tired", message="{where} is tired.", required=("DeadUnits",))
        >>> rule.required_entries
        (Entry(rule='DeadUnits', tensor=None, side=None, twice=False),)
    """

    name: str
    message: str
    required: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    supporting: tuple[str, ...] = ()
    excluding: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    confidence: Confidence = "possible"
    detail: Callable[[Evidence, int], str] | None = None
    while_standing: bool = False
    same_rows: bool = False
    condition: Callable[[Evidence], bool] | None = None
    history: Callable[[Evidence, int], bool] | None = None

    def __post_init__(self) -> None:
        if not self.required and not self.any_of:
            raise RuleError(f"cause {self.name} must have a finding in required or any_of")

    @property
    def required_entries(self) -> tuple[Entry, ...]:
        """The entries of `required`."""
        return tuple(map(entry_of, self.required))

    @property
    def any_of_entries(self) -> tuple[Entry, ...]:
        """The entries of `any_of`."""
        return tuple(map(entry_of, self.any_of))

    @property
    def supporting_entries(self) -> tuple[Entry, ...]:
        """The entries of `supporting`."""
        return tuple(map(entry_of, self.supporting))

    @property
    def excluding_entries(self) -> tuple[Entry, ...]:
        """The entries of `excluding`."""
        return tuple(map(entry_of, self.excluding))
