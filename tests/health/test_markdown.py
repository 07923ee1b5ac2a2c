"""Findings in TensorBoard's Text tab: what its own renderer makes of them."""

import dataclasses
import re
import warnings

import pytest

from lightning_hooks.health.causes import explain
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.markdown import markdown_of
from tests.health.test_causes import finding, findings_of


def rendered(*args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard.plugin_util import markdown_to_safe_html
    return markdown_to_safe_html(markdown_of(*args))


def test_a_line_has_the_verdict_and_the_first_step_to_take():
    findings = findings_of("UpdateTooLarge", "LossDiverged", first=30)
    html = rendered(explain(findings, Evidence()), findings)
    assert "<li><strong>WARNING: LearningRateTooHigh (likely).</strong> The steps are too large" in html
    assert "<strong>Next:</strong> Divide the learning rate by 10" in html and html.count("<li>") == 1


def test_more_than_five_findings_are_four_and_their_number():
    many = [dataclasses.replace(finding("NotCalledAnyMore", rows=(f"a{i}",)), number=i) for i in range(7)]
    assert markdown_of([], many[:5]).count("\n") == 4 and "more" not in markdown_of([], many[:5]).splitlines()[-1]
    lines = markdown_of([], many).splitlines()
    assert len(lines) == 5 and lines[-1] == "- and 3 more"


NAMES = (
    "second_layer_of_all.weight",
    "_my_layer_",
    "net.__x__.w",
    "a.*star*.*",
    "<b>bold</b>",
    "a|b",
    "[x](http://y)",
    "a&lt;b",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_as_it_is(name):
    html = rendered([], [dataclasses.replace(finding("NotCalledAnyMore"), message=f"{name}: dead.")])
    assert not re.search("<(em|b|a|table)[ >]", html)
    assert f"</strong> {name.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}: dead." in html


def test_code_in_next_steps_is_code():
    steps = ("Call `requires_grad_(False)`, or `a.*`.",)
    html = rendered([], [dataclasses.replace(finding("NotCalledAnyMore"), next_steps=steps)])
    assert "Call <code>requires_grad_(False)</code>, or <code>a.*</code>." in html
