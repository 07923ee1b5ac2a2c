"""What a reporter does about a finding: every action, once, on the ranks that it is for."""

import pytest

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.health.reporter import HealthError
from lightning_hooks.health.rule import Severity
from tests.health.outlets_for_tests import SICK, consume, started, views
from tests.health.rules_for_tests import Huge
from tests.health.test_webhook import server


@pytest.mark.parametrize("key", ["warning", "Huge"])
def test_every_action_happens_once_for_each_finding(tmp_path, key):
    called = []
    with server(200) as (url, got):
        actions = ["log", "warn", "stop", "checkpoint", "raise", called.append, {"notify": url}, {"focus": 7}]
        reporter, outlet, context = started(tmp_path, Huge(), actions={key: actions})
        consume(reporter, views(SICK))
    (finding,) = reporter.diagnosis.findings
    assert len(outlet.blocks) == 1 and outlet.focuses == [7] and context.reasons == ["a: gradient reaches 20."]
    assert context.checkpoints == ["Huge_a-step9.ckpt"] and [each.fingerprint for each in called] == [finding.fingerprint]
    assert isinstance(reporter.error, HealthError) and str(reporter.error) == outlet.blocks[0]
    (message,) = got
    assert message["text"] == outlet.blocks[0] and message["finding"]["rule"] == "Huge"


@pytest.mark.parametrize("severity", list(Severity))
def test_the_actions_of_a_rule_take_precedence_over_those_of_its_severity(severity):
    reporter, outlet, context = started(None, Huge(severity=severity), actions={severity.value: "stop", "Huge": {"focus": 3}})
    consume(reporter, views(SICK))
    assert context.reasons == [] and outlet.focuses == [3] and outlet.blocks == []


@pytest.mark.parametrize("severity", list(Severity))
def test_a_severity_has_its_own_actions(severity):
    actions = {each.value: {"focus": i + 1} for i, each in enumerate(Severity)}
    reporter, outlet, _ = started(None, Huge(severity=severity), actions=actions)
    consume(reporter, views(SICK))
    assert outlet.focuses == [severity.rank + 1] and outlet.blocks == []


def test_every_rank_acts_and_the_first_one_alone_posts():
    called = []
    with server(200) as (url, got):
        reporter, _, context = started(None, Huge(), actions={"warning": ["stop", called.append, {"notify": url}]}, rank=1)
        consume(reporter, views(SICK))
    assert len(context.reasons) == len(called) == 1 and got == []


def test_a_resumed_fit_does_not_act_again():
    reporter, _, _ = started(None, Huge(), actions={"warning": "stop"})
    for view in views(SICK):
        reporter.consume(view)
    resumed, _, context = started(None, Huge(), actions={"warning": "stop"}, state=reporter.state_dict())
    consume(resumed, views([20.0] * 20, first=20))
    assert context.reasons == []


@pytest.mark.parametrize("row", ["a/b\\c", "層" * 200, "x" * 400, "..", "a\x1b\n\0"])
def test_a_checkpoint_has_a_name_that_a_disk_takes_with_the_step_at_its_end(tmp_path, row):
    reporter, _, context = started(None, Huge(), actions={"warning": "checkpoint"})
    consume(reporter, views(SICK, row))
    (name,) = context.checkpoints
    (tmp_path / name).touch()
    assert name.startswith("Huge_") and name.endswith("-step9.ckpt") and name.isascii()


def test_an_action_that_the_run_cannot_do_is_a_warning(monkeypatch):
    reporter, outlet, context = started(None, Huge(), actions={"warning": ["checkpoint", "warn"]})

    def refuse(name):
        raise UnsupportedError(f"save_checkpoint: {name!r} has no folder")

    monkeypatch.setattr(context, "save_checkpoint", refuse)
    with pytest.warns(UserWarning, match=r"action 'checkpoint' for Huge/a: save_checkpoint: 'Huge_a-step9' has no folder"):
        consume(reporter, views(SICK))
    assert len(outlet.blocks) == 1
