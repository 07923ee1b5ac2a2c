"""A change of modules between training and evaluation mode is a fact of the step, and the overview lists it."""

import json

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, instrument, read_run
from lightning_hooks.dashboard.modes import mode_changes
from lightning_hooks.dashboard.overview import overview
from lightning_hooks.dashboard.report import write_report
from lightning_hooks.dashboard.runs import LocalRuns

from .browser import needs_browser, opened, serving


def facts(*names):
    return json.dumps({"evaluating": list(names)})


@pytest.mark.parametrize(
    ("texts", "changes"),
    [
        ([], []),
        ([(0, facts("a"))], []),
        ([(0, facts()), (3, '{"rates": [[[0.1, 0]]]}'), (7, facts("a"))], [(7, "a went into evaluation mode")]),
        ([(0, facts("a", "b")), (7, facts("b"))], [(7, "a went into training mode")]),
        ([(0, facts("a")), (7, facts("b"))], [(7, "b went into evaluation mode; a went into training mode")]),
        ([(0, facts()), (7, facts(*"abcde"))], [(7, "a, b, c and 2 more went into evaluation mode")]),
        ([(0, facts()), (1, '{"evaluating": 3}'), (2, '{"evaluating": [4]}'), (3, '{"evaluating"')], []),
    ],
    ids=["no facts", "first step", "begins", "ends", "both", "many", "damaged"],
)
def test_changes_after_the_first_step_are_listed(texts, changes):
    assert [(each["step"], each["text"]) for each in mode_changes(texts)] == changes


def test_of_many_changes_the_first_are_listed():
    texts = [(step, facts("a") if step % 2 else facts()) for step in range(31)]
    changes = mode_changes(texts)
    assert len(changes) == 21 and changes[-1] == {"step": None, "text": "and 10 more changes"}


def train(folder):
    """Train a policy, which goes into evaluation mode at the third step."""
    policy = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with instrument(policy, [StatsMonitor()], optimizer=optimizer, logdir=folder):
        for step in range(4):
            policy.train(step < 2)
            policy(torch.ones(2, 4)).sum().backward()
            optimizer.step()


def test_a_policy_that_trains_in_evaluation_mode_from_a_step_on_is_listed(tmp_path):
    train(tmp_path)
    evaluating = [view.facts.evaluating for view in read_run(tmp_path / "run_0").views()]
    assert evaluating == [(), (), ("0", "1", "2"), ("0", "1", "2")]
    source = LocalRuns(tmp_path / "run_0").open(".")
    assert overview(source)["modes"] == [{"step": 2, "text": "0, 1, 2 went into evaluation mode"}]


@needs_browser
@pytest.mark.slow
def test_the_overview_shows_the_change_and_leads_to_the_step(browser, tmp_path):
    train(tmp_path)
    write_report(tmp_path / "run_0", tmp_path / "report.html")
    with serving(tmp_path) as url:
        for where in (f"{url}#run=run_0", (tmp_path / "report.html").as_uri()):
            with opened(browser, where) as page:
                page.wait_for_selector(".modes")
                assert page.inner_text(".modes li") == "Step 2: 0, 1, 2 went into evaluation mode."
                page.click(".modes button")
                page.wait_for_selector(".bars")
                page.wait_for_selector("h2:has-text('at step 2')")
