"""What a person gets from a `HealthMonitor` where something is wrong: rules, monitors, webhooks, names."""

from __future__ import annotations

import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from lightning_hooks import HealthMonitor, StatsMonitor, StepConsumer, read_run
from lightning_hooks.cli.main import main
from lightning_hooks.health import HealthRule
from lightning_hooks.health.journal import read_findings
from lightning_hooks.health.reporter import HealthError
from lightning_hooks.health.rule import Symptom
from lightning_hooks.health.webhook import Webhook
from tests.callbacks.health_fits import fit
from tests.callbacks.models import Net, adamw, data, trainer_of
from tests.callbacks.test_health import Forgotten
from tests.health.test_webhook import server


class Fails(HealthRule):
    """A rule with an error."""

    def check(self, evidence: Any) -> Any:
        raise ZeroDivisionError("no luck")


@pytest.mark.parametrize("rule", ["LossDiverged", "NotInOptimizer"])
def test_rules_that_read_no_row_look_also_where_the_monitor_is_alone(
    tmp_path: Path, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logger, monitor = TensorBoardLogger(tmp_path), HealthMonitor(rules=[rule], every_n_steps=1)
    trainer_of(tmp_path, monitor, logger=logger).fit(Net(adamw), data(10))
    assert monitor.summary["ran"] == [rule] and " in 10 steps; " in capsys.readouterr().err
    assert [view.step for view in read_run(logger.log_dir).views(prefix="health/")] == [*range(10)]


class Late(HealthRule):
    """Looks at the end of the fit only."""

    def check(self, evidence: Any) -> Any:
        yield Symptom("", tensor="", step=evidence.step, measured=1.0, threshold=0.0, text="late")


@pytest.mark.parametrize("order", ["alone", "host first", "host last"])
def test_actions_happen_for_what_is_found_at_the_end(tmp_path: Path, order: str, caplog: pytest.LogCaptureFixture) -> None:
    monitor = HealthMonitor(rules=[Late(every_n_steps=1000, patience=1)], actions={"Late": ["stop", "checkpoint", "raise"]})
    host = StatsMonitor(loggers=[])
    callbacks = {"alone": [monitor], "host first": [host, monitor], "host last": [monitor, host]}[order]
    with pytest.raises(HealthError, match="WARNING: Late, since step 9. Late."):
        trainer_of(tmp_path, *callbacks).fit(Net(adamw), data(10))
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["Late-step9.ckpt"]
    assert "stops the fit" not in caplog.text  # it has ended
    assert [finding.rule for finding in read_findings(tmp_path).findings] == ["Late"]


class Breaks(StepConsumer):
    """Fails at one step."""

    def consume(self, view: Any) -> None:
        if view.step == 3:
            raise ZeroDivisionError("no luck")


@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_a_monitor_that_fails_leaves_the_findings_until_then(tmp_path: Path, on_error: str) -> None:
    monitor = HealthMonitor(rules=["NotInOptimizer", "LossSpike"])
    host = StatsMonitor(loggers=[], consumers=[Breaks()], on_error=on_error)
    trainer = trainer_of(tmp_path, host, monitor)
    if on_error == "warn":
        with pytest.warns(UserWarning, match="StatsMonitor stopped watching .*ZeroDivisionError: no luck"):
            trainer.fit(Forgotten(), data(10))
    else:
        with pytest.raises(ZeroDivisionError, match="no luck"):
            trainer.fit(Forgotten(), data(10))
    known = read_findings(tmp_path)
    assert known.has_ended and [each.rule for each in known.findings] == ["NotInOptimizer"] and known.summary is not None
    assert known.summary["steps"] == 4 and known.summary.get("error") == {"raise": "ZeroDivisionError: no luck"}.get(on_error)
    assert trainer.global_step == (10 if on_error == "warn" else 4)


# -- rules and webhooks ----------------------------------------------------------------------------------------------------


def test_a_rule_that_raises_is_switched_off_and_the_others_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = HealthMonitor(rules=["NotInOptimizer", Fails(every_n_steps=2)])
    (said,) = fit(tmp_path, monitor)
    assert said == "health rule Fails failed and is switched off: ZeroDivisionError: no luck"
    assert "(Fails failed)" in capsys.readouterr().err


def test_a_webhook_that_answers_500_is_one_warning(tmp_path: Path) -> None:
    with server(500) as (url, got):
        said = fit(tmp_path, HealthMonitor(actions={"NotInOptimizer": {"notify": url}, "NoGradient": {"notify": url}}))
    assert got and said == [
        "notify: findings could not be posted (HTTPError: HTTP Error 500: Internal Server Error); the training goes on"
    ]


def test_a_webhook_that_hangs_does_not_hold_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.health.reporter.Webhook", partial(Webhook, timeout=0.2))
    hangs = threading.Event()
    with server(200, hangs) as (url, got):
        # The server answers no post before the fit has ended.
        said = fit(tmp_path, HealthMonitor(actions={"NotInOptimizer": {"notify": url}}))
        assert not hangs.is_set() and len(got) == 1
    assert all("could not be posted" in each for each in said)
    assert read_findings(tmp_path).has_ended


# -- names -----------------------------------------------------------------------------------------------------------------


class Rude(Net):
    """The optimizer does not hold a layer whose name has escape sequences."""

    name = "a\x1b[31m\x07b"

    def __init__(self) -> None:
        super().__init__(adamw)
        self.body.add_module(self.name, nn.Linear(3, 3))

    def configure_optimizers(self) -> Any:
        known = [parameter for name, parameter in self.named_parameters() if self.name not in name]
        return torch.optim.SGD(known, lr=0.1)


@pytest.mark.parametrize("beside", [True, False])
def test_names_with_control_characters_are_printed_as_text(
    tmp_path: Path, beside: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger, monitor = TensorBoardLogger(tmp_path), HealthMonitor(actions={"warning": ["warn", "stop", "checkpoint"]})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer_of(tmp_path, *([StatsMonitor()] if beside else []), monitor, logger=logger).fit(Rude(), data(10))
    assert any(Rude.name in row for finding in monitor.findings for row in finding.rows)
    said = capsys.readouterr()
    main(["doctor", logger.log_dir])
    main(["doctor", logger.log_dir, "--json"])
    markdown = read_run(logger.log_dir).texts["watch/health/run/findings" if not beside else "watch/run/findings"]
    texts = [said.out, said.err, markdown, capsys.readouterr().out, *(str(each.message) for each in warned)]
    texts += [record.getMessage() for record in caplog.records]
    assert r"a\x1b[31m\x07b" in said.err and r"a\\x1b\[31m\\x07b" in markdown  # Markdown, in which a backslash escapes
    assert not [text for text in texts if "\x1b" in text or "\x07" in text]
