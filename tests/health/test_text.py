"""Findings and causes in words: one block for each cause, with its findings as reasons."""

import builtins
from dataclasses import replace

from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.causes import explain
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.finding import Finding, problems_of
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.health.text import as_rich, as_text, block_of_finding, blocks_of
from tests.health.test_causes import finding, findings_of


def test_a_cause_is_one_block_with_a_reason_for_each_finding():
    findings = findings_of("UpdateTooLarge", "LossDiverged", first=30)
    text = as_text(blocks_of(explain(findings, Evidence()), findings))
    assert text.splitlines()[:4] == [
        "WARNING: LearningRateTooHigh (likely). The steps are too large for this model, since step 30, first seen in",
        "  fc.",
        "  Why   UpdateTooLarge in fc, since step 30: numbers",
        "        LossDiverged in fc, since step 30: numbers",
    ]
    assert "\n  Next  Divide the learning rate by 10" in text and "\n  Or    A bad batch: then the first sign" in text


def test_many_reasons_are_cut():
    rules = ("UpdateTooLarge", "WeightGrowth", "LossDiverged", "LossSpike", "GradientSpike", "ExplodingGradient", "NonFinite")
    findings = findings_of(*rules, "DeadUnits", "DeadLayer", "ConstantOutput")
    (block,) = blocks_of(explain(findings, Evidence()), findings)
    assert len(block.why) == 8 and block.why[-1] == "and 3 more findings"


def test_a_finding_without_a_cause_is_a_block_of_its_own():
    symptom = Symptom("e.0", tensor="grad", step=7, measured=20.0, threshold=10.0, text="gradient reaches 20")
    rows, words = ("e.0", "e.1"), "e.0, then 1 more: …"
    alone = Finding(
        "Huge",
        rows=rows,
        tensor="grad",
        first_step=5,
        last_step=9,
        severity=Severity.CRITICAL,
        evidence=(symptom,),
        message=words,
        next_steps=("Clip it.",),
        source="us",
        is_over=12,
    )
    assert as_text([block_of_finding(alone)]).splitlines() == [
        "CRITICAL: Huge, since step 5. e.0, then 1 more: … Over since step 12.",
        "  Why   e.0, step 7: gradient reaches 20",
        "        threshold: us",
        "  Next  Clip it.",
    ]


def test_harm_that_a_finding_says_itself_stands_once():
    for block in (block_of_finding, lambda each: blocks_of(explain([each], Evidence()), [each])[0]):
        for harm, count in (("numbers", 0), ("the loss has risen", 1)):
            why = block(finding("PoorInitialization>", harm=harm)).why
            assert sum(line == harm for line in why) == count and any("numbers" in line for line in why)


def test_findings_of_one_cause_are_one_problem():
    findings = findings_of("UpdateTooLarge", "LossDiverged", first=30)
    alone = [finding("DeadUnits", number=number, rows=("a",)) for number in (3, 4)]
    note = finding("MassiveActivation", number=5, severity=Severity.INFO)
    causes = explain(findings, Evidence())
    assert problems_of([*alone, *findings, note], causes) == ["LearningRateTooHigh", "DeadUnits/a"]
    assert problems_of(alone, causes) == ["DeadUnits/a"] and problems_of([note], causes) == []


def test_the_worst_comes_first_and_information_is_left_out():
    findings = [
        finding("FrozenMoves", number=1, severity=Severity.INFO),
        finding("NotCalledAnyMore", number=2),
        finding("MassiveActivation", number=3, severity=Severity.CRITICAL),
    ]
    assert [block.severity for block in blocks_of([], findings)] == ["critical", "warning"]
    assert len(blocks_of([], findings, Severity.INFO)) == 3


def test_names_cannot_move_the_cursor():
    assert "\x1b" not in as_text([block_of_finding(finding("DeadUnits", rows=("a\x1b[31m",)))])


def test_rich_text_has_the_same_words_and_is_optional(monkeypatch):
    block = block_of_finding(finding("DeadUnits"))
    assert as_rich(block).plain == as_text([block])
    real = builtins.__import__

    def without_rich(name, *args, **options):
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert as_rich(block) is None


def test_what_the_verdict_has_said_is_not_said_again_as_its_reason():
    evidence = Evidence()
    (lost,) = findings_of("LossDiverged", first=30)
    rule = CauseRule(name="Hot", message="Hot: numbers.", required=("LossDiverged",), confidence="certain")
    text = as_text(blocks_of(explain([lost], evidence, (rule,)), [lost]))
    assert "Why   LossDiverged in fc, since step 30\n" in f"{text}\n"
    alone = replace(lost, message="fc: numbers.", next_steps=("Clip.",))
    assert as_text([block_of_finding(alone)]).splitlines()[1].startswith("  Next")
