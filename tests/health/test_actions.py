"""Actions are read from what a user writes; what is none is named, with what would be right."""

import re

import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.actions import PLAIN, Action, Actions
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.rule import Severity

RULES = ["DeadUnits", "LossSpike"]
SEVERITIES = [severity.value for severity in Severity]
URL = "https://example.org/hook"


def on_finding(finding):
    """An action of the user's."""


def takes_two(finding, more):
    """Not an action."""


def finding(rule="DeadUnits", severity=Severity.WARNING):
    return Finding(rule, rows=("fc",), tensor="output", first_step=0, last_step=9, severity=severity, evidence=(), message="m")


def of(actions, *about):
    return Actions.read(actions, RULES).of(finding(*about))


def test_by_default_information_is_logged_and_the_rest_warns():
    for actions in (None, {}):
        assert [of(actions, "R", severity)[0].kind for severity in Severity] == ["log", "warn", "warn"]


def named(value: object) -> str:
    """The name of a parameter, the same in every process that collects these tests."""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize("key", [*SEVERITIES, "DeadUnits"])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        *((kind, Action(kind)) for kind in PLAIN),
        *(({kind: None}, Action(kind)) for kind in PLAIN),
        (on_finding, Action("call", on_finding)),
        ({"call": on_finding}, Action("call", on_finding)),
        ({"call": f"{__name__}.on_finding"}, Action("call", on_finding)),
        ({"notify": URL}, Action("notify", URL)),
        ("focus", Action("focus", 50)),
        ({"focus": 7}, Action("focus", 7)),
    ],
    ids=named,
)
def test_every_action_is_read_for_every_key(key, written, read):
    severity = Severity(key) if key in SEVERITIES else Severity.WARNING
    assert of({key: written}, "DeadUnits", severity) == of({key: [written]}, "DeadUnits", severity) == (read,)


def test_a_list_keeps_its_order_and_an_empty_one_does_nothing():
    assert [each.kind for each in of({"warning": ["stop", {"focus": 3}, "warn"]})] == ["stop", "focus", "warn"]
    assert of({"warning": []}) == ()


@pytest.mark.parametrize("severity", list(Severity))
def test_a_rule_takes_precedence_over_its_severity(severity):
    actions = {severity.value: "stop", "LossSpike": "raise"}
    assert of(actions, "LossSpike", severity) == (Action("raise"),) and of(actions, "DeadUnits", severity) == (Action("stop"),)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ("stop", "actions must map severities or rules to actions, as {'critical': 'stop'}, got 'stop'"),
        ([{"critical": "stop"}], "actions must map severities or rules to actions, as {'critical': 'stop'}, got [{"),
        ({"critcal": "stop"}, "actions: 'critcal' is neither a severity nor a rule (did you mean 'critical'"),
        ({"LossSpikes": "stop"}, "actions: 'LossSpikes' is neither a severity nor a rule (did you mean 'LossSpike'"),
        ({1: "stop"}, "actions: 1 is neither a severity nor a rule"),
        ({"critical": "stopp"}, "actions['critical']: unknown action 'stopp' (did you mean 'stop'"),
        ({"critical": "halt"}, "; there are log, warn, stop, checkpoint, raise, call, notify, focus"),
        ({"critical": ["warn", "halt"]}, "actions['critical'][1]: unknown action 'halt'"),
        ({"critical": True}, "actions['critical'] must be an action or a list of actions, got True"),
        ({"critical": None}, "actions['critical'] must be an action or a list of actions, got None"),
        ({"critical": [3]}, "actions['critical'][0]: unknown action 3; there are log"),
        (
            {"critical": {"stop": False}},
            "actions['critical'].stop takes no argument, got False; omit the action",
        ),
        ({"critical": {"warn": "loud"}}, "actions['critical'].warn takes no argument, got 'loud'"),
        ({"critical": {"stopp": None}}, "actions['critical']: unknown action 'stopp' (did you mean 'stop'"),
        ({"critical": {}}, "actions['critical'] must name one action, as {'focus': 50}, got {}"),
        ({"critical": {"focus": 3, "notify": URL}}, "must name one action, as {'focus': 50}, got {'focus': 3, "),
        ({"critical": {"focus": 3, "notify": URL}}, "; give several as a list"),
        ({"critical": "call"}, "actions['critical']: 'call' needs an argument: {'call': 'my_project.on_finding'}"),
        ({"critical": "notify"}, "actions['critical']: 'notify' needs an argument: {'notify': 'https://…'}"),
        ({"critical": {"call": 3}}, "actions['critical'].call must be a function or its import path, got 3"),
        ({"critical": {"call": "no_such_module.f"}}, "no_such_module"),
        ({"critical": {"call": f"{__name__}.no_such"}}, "no_such"),
        ({"critical": {"call": f"{__name__}.URL"}}, "actions['critical'].call must be a function"),
        ({"critical": takes_two}, "actions['critical'].call"),
        ({"critical": {"notify": None}}, "actions['critical'].notify must be the URL of a webhook, https://…, got None"),
        (
            {"critical": {"notify": "ftp://x"}},
            "actions['critical'].notify must be the URL of a webhook, https://…, got 'ftp://x'",
        ),
        (
            {"critical": {"notify": "https://"}},
            "actions['critical'].notify must be the URL of a webhook, https://…, got 'https://'",
        ),
        ({"critical": {"notify": "https://a b/"}}, "actions['critical'].notify must be the URL of a webhook"),
        ({"critical": {"notify": "https://[a/"}}, "actions['critical'].notify must be the URL of a webhook"),
        ({"critical": {"focus": 0}}, "actions['critical'].focus must be a number of steps, at least 1, got 0"),
        ({"critical": {"focus": True}}, "actions['critical'].focus must be a number of steps, at least 1, got True"),
        ({"critical": {"focus": 2.5}}, "actions['critical'].focus must be a number of steps, at least 1, got 2.5"),
    ],
    ids=named,
)
def test_what_is_no_action_is_refused(actions, message):
    with pytest.raises(RuleError, match=re.escape(message)):
        Actions.read(actions, RULES)


def test_without_names_of_rules_every_name_is_allowed():
    assert Actions.read({"Mine": "stop"}).of(finding("Mine")) == (Action("stop"),)


ADDRESS = "https://hooks.example.org/services/T0/SECRET?key=SECRET"


@pytest.mark.parametrize(
    "actions",
    [
        {"critical": {"notify": "hooks.example.org/services/SECRET"}},
        {"critical": {"notify": "https://me:SECRET@hooks.example.org/"}},
        {"critical": {"notify": "https://hooks.example.org/a b/SECRET"}},
        {"critical": {"notify": ["https://hooks.example.org/SECRET"]}},
        {"critical": {"notify": ADDRESS, "focus": 3}},
        {"critical": {"notfy": ADDRESS}},
        {"critical": {"log": ADDRESS}},
        {"critical": ADDRESS},
        {ADDRESS: "stop"},
        [{"notify": ADDRESS}],
    ],
)
def test_no_error_contains_the_address_of_a_webhook(actions):
    with pytest.raises(RuleError) as caught:
        Actions.read(actions, RULES)
    assert "SECRET" not in str(caught.value)


def test_a_repr_shows_the_host_of_a_webhook_alone():
    shown = repr(Actions.read({"critical": {"notify": ADDRESS}}, RULES))
    assert "SECRET" not in shown and "Action(kind='notify', argument='https://hooks.example.org/…')" in shown


def test_a_user_name_in_the_address_of_a_webhook_is_refused():
    with pytest.raises(RuleError, match="must be a URL without a user name and a password, got 'https://example.org'"):
        Actions.read({"critical": {"notify": "https://me:secret@example.org"}}, RULES)
