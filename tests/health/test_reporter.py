"""A reporter tells each finding once, writes it, acts on it, and lets no error of its own end a training."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.journal import Journal, read_findings
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.summary import FURTHER
from lightning_hooks.records.run_context import checkpoint_name
from tests.health.outlets_for_tests import HEALTHY, SICK, consume, started, views
from tests.health.rules_for_tests import Huge, Raises
from tests.health.test_webhook import server

# -- what is told and written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command"),
    [("events.out.tfevents.1.vm.2.0", "Page: lightning-hooks view"), ("notes.txt", "Diagnosis: lightning-hooks doctor")],
)
def test_a_finding_is_told_once_and_is_in_the_files(tmp_path, name, command):
    (tmp_path / name).touch()
    reporter, outlet, _ = started(tmp_path, Huge())
    consume(reporter, views(SICK))
    (block,) = outlet.blocks
    assert block.startswith("WARNING: Huge, since step 5. a: gradient reaches 20.")
    assert outlet.lines == [f"Not healthy in 20 steps: Huge/a. {command} {tmp_path}"]
    assert outlet.markdown.startswith("- **WARNING: Huge, since step 5.**")
    run = read_findings(tmp_path)
    assert [each.kind for each in run.events] == ["begin", "new", "end"] and run.has_ended
    assert run.findings == reporter.diagnosis.findings and outlet.lines[0].startswith(run.summary["line"])


def test_the_outlet_keeps_what_was_found_at_each_event_and_once_at_the_end(tmp_path):
    reporter, outlet, _ = started(tmp_path, Huge())
    for view in views(SICK):
        reporter.consume(view)
    reporter.finish()
    reporter.close(None)
    told = [(each["has_ended"], each["step"], len(each["findings"])) for each in outlet.summaries]
    assert told == [(False, 9, 1), (True, 19, 1)]
    assert outlet.summaries[-1]["ran"] == ["Huge"] and json.dumps(outlet.summaries, allow_nan=False)
    reporter, outlet, _ = started(tmp_path / "healthy", Huge())
    consume(reporter, views(HEALTHY))
    assert [(each["has_ended"], each["findings"]) for each in outlet.summaries] == [(True, [])]


def test_information_is_in_the_files_only(tmp_path):
    reporter, outlet, _ = started(tmp_path, Huge(severity="info"))
    consume(reporter, views(SICK))
    assert outlet.blocks == [] and outlet.markdown == ""
    assert outlet.lines == [f"No problem found in 20 steps (1 note); {FURTHER}. Diagnosis: lightning-hooks doctor {tmp_path}"]
    assert [finding.rule for finding in read_findings(tmp_path).findings] == ["Huge"]


def test_other_stages_and_other_ranks_say_nothing(tmp_path):
    reporter, outlet, _ = started(tmp_path, Huge())
    consume(reporter, [replace(view, stage="validate") for view in views(SICK)])
    assert not reporter.diagnosis.findings and outlet.lines == []
    reporter, outlet, _ = started(tmp_path / "other", Huge(), rank=1)
    consume(reporter, views(SICK))
    assert len(reporter.diagnosis.findings) == 1 and not (tmp_path / "other").exists()
    assert (outlet.blocks, outlet.lines, outlet.markdown) == ([], [], "")


def test_a_run_without_a_folder_is_told_only():
    reporter, outlet, _ = started(None, Huge())
    consume(reporter, views(SICK))
    assert len(outlet.blocks) == 1


def test_a_fit_that_fails_writes_its_error_and_says_no_line(tmp_path):
    reporter, outlet, _ = started(tmp_path, Huge())
    consume(reporter, views(HEALTHY), ValueError("no\x1b[31m"))
    assert outlet.lines == [] and read_findings(tmp_path).summary["error"] == "ValueError: no\\x1b[31m"


def test_two_fits_in_one_folder_are_kept_apart(tmp_path):
    for series, line in ((SICK, "Not healthy"), (HEALTHY, "No problem found")):
        reporter, _, _ = started(tmp_path, Huge())
        consume(reporter, views(series))
        run = read_findings(tmp_path)
        assert run.findings == reporter.diagnosis.findings and run.summary["line"].startswith(line)
    assert run.fit == 2 and [event.kind for event in run.events] == ["begin", "end"]
    assert [event.kind for event in read_findings(tmp_path, 1).events] == ["begin", "new", "end"]


def test_a_fit_begins_before_its_first_step(tmp_path):
    reporter, _, _ = started(tmp_path, Huge())
    assert not read_findings(tmp_path).has_ended
    consume(reporter, views(HEALTHY))
    again, _, _ = started(tmp_path, Huge())
    assert not read_findings(tmp_path).has_ended and read_findings(tmp_path).summary is None
    again.close(None)


@pytest.mark.parametrize("loads_late", [False, True])
def test_a_resumed_fit_keeps_the_findings_of_its_checkpoint_and_drops_later_ones(tmp_path, loads_late):
    reporter, _, _ = started(tmp_path, Huge())
    for view in views(SICK):
        reporter.consume(view)
    state = json.loads(json.dumps(reporter.state_dict()))
    consume(reporter, views([20.0] * 10, row="b", first=60), KeyboardInterrupt())
    resumed, outlet, _ = started(tmp_path, Huge(), state=None if loads_late else state)
    if loads_late:
        resumed.load_state_dict(state)
    resumed.consume(views([20.0], first=20)[0])
    run = read_findings(tmp_path)
    assert [finding.rows for finding in run.findings] == [("a",)] and not run.has_ended
    consume(resumed, views(HEALTHY, first=21))
    assert outlet.blocks == []  # told before the checkpoint
    assert read_findings(tmp_path).findings == resumed.diagnosis.findings and resumed.diagnosis.findings[0].is_over == 21


@pytest.mark.parametrize(
    "damage",
    [
        {"told": ["x"]},
        {"told": 3},
        {"acted": [None]},
        {"told_causes": ["Hot"]},
        {"waiting": [1]},
        {"waiting": {"Hot": "soon"}},
        {"diagnosis": None},
        {"diagnosis": {"count": 3}},
    ],
    ids=str,
)
def test_a_damaged_state_is_an_error_and_changes_nothing(damage):
    reporter, _, _ = started(None, Huge())
    for view in views(SICK):
        reporter.consume(view)
    state = json.loads(json.dumps(reporter.state_dict()))
    fresh, _, _ = started(None, Huge())
    for broken in ({**state, **damage}, {key: value for key, value in state.items() if key not in damage}, None, []):
        with pytest.raises(RuleError, match="the saved state is damaged"):
            fresh.load_state_dict(broken)
    assert fresh.state_dict() == started(None, Huge())[0].state_dict() and fresh.diagnosis.findings == []
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state


# -- bad input -------------------------------------------------------------------------------------------------------------


def test_a_function_that_raises_is_a_warning_and_the_other_actions_happen():
    def fails(finding):
        raise ZeroDivisionError("no luck\x1b[31m")

    reporter, outlet, _ = started(None, Huge(), actions={"warning": [fails, {"focus": 3}]})
    with pytest.warns(UserWarning) as said:
        consume(reporter, views(SICK))
    assert [str(each.message) for each in said] == [
        "action 'call' for Huge/a failed: ZeroDivisionError: no luck\\x1b[31m; training continues"
    ]
    assert outlet.focuses == [3]


def test_a_rule_that_raises_is_switched_off_and_named_and_the_others_go_on(tmp_path):
    reporter, outlet, _ = started(tmp_path, Raises(), Huge())
    with pytest.warns(UserWarning, match="health rule Raises failed and is switched off: ZeroDivisionError: no luck") as said:
        consume(reporter, views(SICK))
    assert len(said) == 1 and len(outlet.blocks) == 1
    assert "Raises failed" in outlet.lines[0]
    assert read_findings(tmp_path).summary["failed"] == {"Raises": "ZeroDivisionError: no luck"}


@pytest.mark.parametrize("status", [500, 404])
def test_a_webhook_that_fails_is_one_warning(tmp_path, status):
    with server(status) as (url, got), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reporter, outlet, _ = started(tmp_path, Huge(), actions={"warning": ["warn", {"notify": url}]})
        consume(reporter, views(SICK))
    assert len(got) == 1 and len(outlet.blocks) == 1
    assert [f"HTTP Error {status}" in str(each.message) for each in said] == [True]


class Careless(HealthRule):
    """Makes symptoms of what NumPy gives, without converting numbers."""

    patience = 1

    def check(self, evidence):
        for step in evidence.new_steps:
            yield Symptom("a", tensor="grad", step=step, measured=np.float32(3.0), threshold=np.int64(1), text="three")


def test_numbers_of_numpy_in_symptoms_are_numbers(tmp_path):
    reporter, outlet, _ = started(tmp_path, Careless(every_n_steps=1, patience=1))
    consume(reporter, views(SICK))
    assert len(outlet.blocks) == 1 and len(read_findings(tmp_path).findings) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((None, "grad", 3, 1.0, 1.0, "t"), "symptom.row must be a string, got None"),
        (("a", "grad", 3.5, 1.0, 1.0, "t"), "symptom.step must be an integer, got 3.5"),
        (("a", "grad", 3, "much", 1.0, "t"), "symptom.measured must be a number, got 'much'"),
        (("a", "grad", 3, 1.0, 1.0, None), "symptom.text must be a string, got None"),
    ],
)
def test_a_rule_whose_symptoms_are_damaged_is_switched_off(tmp_path, values, message):
    class Wrong(HealthRule):
        def check(self, evidence):
            names = ("row", "tensor", "step", "measured", "threshold", "text")
            yield Symptom(**dict(zip(names, values, strict=True)))

    reporter, outlet, _ = started(tmp_path, Wrong(every_n_steps=1, patience=1), Huge())
    with pytest.warns(UserWarning, match=f"health rule Wrong failed and is switched off: RuleError: {message}"):
        consume(reporter, views(SICK))
    assert [block[:13] for block in outlet.blocks] == ["WARNING: Huge"]


@pytest.mark.parametrize("where", ["consume", "close"])
def test_an_error_of_its_own_is_a_warning_and_the_files_say_so(tmp_path, monkeypatch, where):
    reporter, outlet, _ = started(tmp_path, Huge())

    def fails(*args):
        raise RuntimeError("unexpected\x1b[31m")

    method, most = ("finish", 20) if where == "close" else ("add", 12)
    for view in views(SICK)[:most]:
        reporter.consume(view)
    monkeypatch.setattr(reporter.diagnosis, method, fails)
    with pytest.warns(
        UserWarning, match=r"the health rules stopped after RuntimeError: unexpected\\x1b\[31m .*; training continues"
    ):
        consume(reporter, views(SICK)[most:])
    run = read_findings(tmp_path)
    assert [finding.rule for finding in run.findings] == ["Huge"] and run.has_ended
    assert run.summary["stopped"].startswith("RuntimeError: unexpected")
    assert "the health rules stopped after RuntimeError: unexpected" in run.summary["line"]


def test_an_error_while_the_summary_is_written_leaves_nothing_open(tmp_path, monkeypatch):
    closed = []
    reporter, outlet, _ = started(tmp_path, Huge())
    for name in ("write_summary", "close"):
        real = getattr(Journal, name)
        monkeypatch.setattr(Journal, name, lambda self, *args, real=real, name=name: closed.append(name) or real(self, *args))
    monkeypatch.setattr("json.dumps", fails_with_indent(json.dumps))
    with pytest.warns(UserWarning, match="the health rules stopped after ValueError: no JSON"):
        consume(reporter, views(SICK))
    assert closed == ["write_summary", "close"] and outlet.lines[0].startswith("Not healthy in ")


def fails_with_indent(dumps):
    """A `json.dumps` that refuses the summary, the only one with an indent."""

    def call(value, indent=None, **options):
        if indent:
            raise ValueError("no JSON")
        return dumps(value, **options)

    return call


def test_errors_with_control_characters_are_printed_as_text(tmp_path, monkeypatch):
    class Rude(HealthRule):
        def check(self, evidence):
            raise ValueError("\x1b[2J")

    def fails(finding):
        raise ValueError("\x1b[2J")

    reporter, outlet, context = started(tmp_path, Rude(every_n_steps=1), Huge(), actions={"warning": [fails, "checkpoint"]})
    monkeypatch.setattr(context, "save_checkpoint", lambda name: checkpoint_name("\x1b/"))
    with pytest.warns(UserWarning) as said:
        consume(reporter, views(SICK, "a\x1b[31m"))
    texts = [str(each.message) for each in said] + outlet.lines
    assert len(texts) == 4 and all(text.isprintable() for text in texts)
