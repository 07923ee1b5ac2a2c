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


def test_the_verdict_is_bold_and_reasons_and_next_steps_are_a_list():
    findings = findings_of("UpdateTooLarge", "LossDiverged", first=30)
    html = rendered(explain(findings, Evidence()), findings)
    assert "<p><strong>WARNING: LearningRateTooHigh (likely).</strong> The steps are too large" in html
    assert "<li>UpdateTooLarge in fc, since step 30: numbers</li>" in html
    assert "<li><strong>Next:</strong> Divide the learning rate by 10" in html
    assert "<li><strong>Or:</strong> A bad batch" in html


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
    html = rendered([], [finding("NotCalledAnyMore", rows=(name, "b"))])
    listed = html[html.index("<li>") :]
    assert not re.search("<(em|b|a|table)[ >]", html)
    assert listed.startswith(f"<li>{name.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}")


def test_code_in_next_steps_is_code():
    steps = ("Call `requires_grad_(False)`, or `a.*`.",)
    html = rendered([], [dataclasses.replace(finding("NotCalledAnyMore"), next_steps=steps)])
    assert "Call <code>requires_grad_(False)</code>, or <code>a.*</code>." in html
