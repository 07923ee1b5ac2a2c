"""What a person gets from a `HealthMonitor` where something is wrong: disks, damaged files, webhooks, names, two monitors."""

from __future__ import annotations

import json
import os
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn

from lightning_hooks import HealthMonitor, RuleError, StatsMonitor, StepConsumer, Watch, read_run
from lightning_hooks.callbacks._ours import matched
from lightning_hooks.callbacks.environment import VARIABLE
from lightning_hooks.cli.main import main
from lightning_hooks.health import HealthRule
from lightning_hooks.health.journal import read_findings
from lightning_hooks.health.reporter import HealthError
from lightning_hooks.health.rule import Sign
from lightning_hooks.health.webhook import Webhook
from tests.callbacks.models import Net, ValNet, adamw, data, trainer_of
from tests.callbacks.test_health import Forgotten, rules_of
from tests.health.test_webhook import server

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")


class Fails(HealthRule):
    """A rule with an error."""

    def check(self, evidence: Any) -> Any:
        raise ZeroDivisionError("no luck")


def fit(folder: Path, monitor: HealthMonitor, model: Any = None, **options: Any) -> list[str]:
    """Fit ten steps in a folder of its own; returns what was warned of."""
    trainer = trainer_of(folder, StatsMonitor(loggers=[]), monitor, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(Forgotten() if model is None else model, data(10))
    assert trainer.global_step == 10 and "NotInOptimizer" in rules_of(monitor)
    return [str(each.message) for each in said if "health" in str(each.filename) or "lightning_hooks" in str(each.filename)]


# -- files -----------------------------------------------------------------------------------------------------------------


@needs_full
def test_a_full_disk_under_the_journal_is_one_warning_and_the_summary_has_everything(tmp_path: Path) -> None:
    (tmp_path / "findings.jsonl").symlink_to("/dev/full")
    monitor = HealthMonitor()
    said = fit(tmp_path, monitor)
    assert len(said) == 2 and "findings.jsonl cannot be written" in said[0] and "No space left on device" in said[0]
    assert "findings wait in memory until it can" in said[0] and "events could not be written" in said[1]
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert [each["rule"] for each in summary["findings"]] == [each.rule for each in monitor.findings]


@needs_full
def test_a_full_disk_under_the_summary_is_a_warning_and_the_journal_has_everything(tmp_path: Path) -> None:
    (tmp_path / "summary.json.tmp").symlink_to("/dev/full")
    monitor = HealthMonitor()
    (said,) = fit(tmp_path, monitor)
    assert "summary.json cannot be written" in said and "No space left on device" in said
    known = [(each.rule, each.first_step) for each in read_findings(tmp_path).findings]
    assert known == [(each.rule, each.first_step) for each in monitor.findings]
    assert [path.name for path in tmp_path.iterdir()] == ["findings.jsonl"]


def test_a_folder_in_place_of_the_journal_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "findings.jsonl").mkdir()
    said = fit(tmp_path, HealthMonitor())
    assert "findings.jsonl cannot be written" in said[0]


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_a_resume_in_the_folder_of_a_damaged_journal_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "findings.jsonl"

    def fit(steps: int, start: Path | None) -> HealthMonitor:
        monitor = HealthMonitor()
        saver = ModelCheckpoint(tmp_path / "saved", save_last=True, every_n_train_steps=1)
        options = {"max_steps": steps, "enable_checkpointing": True}
        trainer = trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor, saver, **options)
        trainer.fit(Forgotten(), data(40), ckpt_path=start)
        return monitor

    first = fit(10, None)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\x00\xff garbage\n", *lines[2:], b'{"event": "new", "step"']))
    resumed = fit(40, tmp_path / "saved" / "last.ckpt")
    assert {each.number for each in first.findings} <= {each.number for each in resumed.findings}
    with pytest.warns(UserWarning, match="findings.jsonl: line .* is ignored") as said:
        known = read_findings(tmp_path)
    assert len(said) == 2 and known.findings == resumed.findings and known.has_ended and known.fit == 2


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    "damage", [lambda state: 3, lambda state: [], lambda state: {}, lambda state: {**state, "diagnosis": {"count": "x"}}]
)
def test_a_damaged_diagnosis_in_a_checkpoint_starts_again(tmp_path: Path, beside: bool, damage: Any) -> None:
    def trainer(steps: int) -> tuple[HealthMonitor, Trainer]:
        monitor = HealthMonitor()
        others = [StatsMonitor(loggers=[])] if beside else []
        return monitor, trainer_of(tmp_path, *others, monitor, max_steps=steps, max_epochs=-1)

    _, first = trainer(5)
    first.fit(Forgotten(), data(40))
    first.save_checkpoint(tmp_path / "last.ckpt")
    content = torch.load(tmp_path / "last.ckpt", weights_only=False)
    (state,) = content["lightning_hooks.HealthMonitor"].values()
    state["diagnosis"] = damage(state["diagnosis"])
    torch.save(content, tmp_path / "damaged.ckpt")
    monitor, second = trainer(20)
    with pytest.warns(UserWarning, match=r"^HealthMonitor: the checkpoint is damaged; .* the diagnosis \(.*damaged"):
        second.fit(Forgotten(), data(40), ckpt_path=tmp_path / "damaged.ckpt")
    assert "NotInOptimizer" in rules_of(monitor) and monitor.summary["steps"] == 15


def test_files_of_a_fit_are_not_written_over_by_other_stages(tmp_path: Path) -> None:
    monitor = HealthMonitor()
    trainer = trainer_of(tmp_path, StatsMonitor(loggers=[], stages=["train", "validate"]), monitor)
    model = ValNet(adamw)
    trainer.fit(model, data(10), data(1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    trainer.validate(model, data(1), verbose=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert monitor.summary["steps"] == 10


def test_a_csv_logger_finds_its_folder_empty(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    assert fit(tmp_path, HealthMonitor(), logger=logger) == []
    assert read_findings(logger.log_dir).has_ended


def test_a_fast_dev_run_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monitor = HealthMonitor()
    trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor, fast_dev_run=3).fit(Forgotten(), data(10))
    assert "NotInOptimizer" in rules_of(monitor) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("rule", ["LossDiverged", "NotInOptimizer"])
def test_rules_that_read_no_row_look_also_where_the_monitor_is_alone(
    tmp_path: Path, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logger, monitor = TensorBoardLogger(tmp_path), HealthMonitor(rules=[rule], every_n_steps=1)
    trainer_of(tmp_path, monitor, logger=logger).fit(Net(adamw), data(10))
    assert monitor.summary["ran"] == [rule] and "found nothing in 10 steps" in capsys.readouterr().err
    assert [view.step for view in read_run(logger.log_dir).views(prefix="health/")] == [*range(10)]


class Late(HealthRule):
    """Looks at the end of the fit only."""

    def check(self, evidence: Any) -> Any:
        yield Sign("", "", evidence.step, 1.0, 0.0, "late")


@pytest.mark.parametrize("order", ["alone", "host first", "host last"])
def test_actions_happen_for_what_is_found_at_the_end(tmp_path: Path, order: str, caplog: pytest.LogCaptureFixture) -> None:
    monitor = HealthMonitor(rules=[Late(every=1000, patience=1)], actions={"Late": ["stop", "checkpoint", "raise"]})
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
    monitor = HealthMonitor(rules=["NotInOptimizer", Fails(every=2)])
    (said,) = fit(tmp_path, monitor)
    assert said == "health rule Fails failed and is switched off: ZeroDivisionError: no luck"
    assert "1 could not run: Fails (ZeroDivisionError: no luck)" in capsys.readouterr().err


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
    main(["findings", logger.log_dir])
    main(["findings", logger.log_dir, "--json"])
    markdown = read_run(logger.log_dir).texts["health/hooks/findings" if not beside else "hooks/findings"]
    texts = [said.out, said.err, markdown, capsys.readouterr().out, *(str(each.message) for each in warned)]
    texts += [record.getMessage() for record in caplog.records]
    assert r"a\x1b[31m\x07b" in said.err and r"a\x1b[31m\x07b" in markdown
    assert not [text for text in texts if "\x1b" in text or "\x07" in text]


# -- two monitors, and YAML ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [True, False])
def test_a_second_health_monitor_is_refused_before_anything_is_written(tmp_path: Path, beside: bool) -> None:
    others = [StatsMonitor(loggers=[])] if beside else []
    monitors = [HealthMonitor(), HealthMonitor(rules=["LossSpike"], prefix="b/")]
    trainer = trainer_of(tmp_path, *others, *monitors)
    message = "the Trainer has two HealthMonitors, which would tell each finding twice; keep one"
    with pytest.raises(RuleError, match=message):
        trainer.fit(Net(), data(3))
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuleError, match=message):
        list(matched(trainer_of(tmp_path, *others, *monitors), Net()))


def test_a_match_shows_the_rows_of_a_fit_beside_a_monitor_and_alone(tmp_path: Path) -> None:
    # With this prefix, two monitors that watched the same rows would be refused.
    trainer = trainer_of(tmp_path, StatsMonitor(loggers=[]), HealthMonitor(prefix=""))
    (_, host), (_, guest) = matched(trainer, Net())
    assert guest.lines == [] and any("dead_units" in line.statistics for line in host.lines)
    trainer.fit(Net(adamw), data(3))
    (_, alone) = next(iter(matched(trainer_of(tmp_path, HealthMonitor()), Net())))
    assert any("dead_units" in line.statistics for line in alone.lines)


def test_the_same_health_monitor_twice_acts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = HealthMonitor()
    with pytest.warns(UserWarning, match="HealthMonitor appears 2 times in the callbacks of the Trainer; it acts once"):
        trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor, monitor).fit(Forgotten(), data(5))
    assert capsys.readouterr().err.count("ParametersForgotten (certain)") == 1


def configured(folder: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> Path:
    file = folder / "hooks.yaml"
    file.write_text(content)
    monkeypatch.setenv(VARIABLE, str(file))
    return file


ALONE = "callbacks:\n  - {class_path: HealthMonitor, init_args: {actions: {critical: stop}}}\n"
BESIDE = ALONE + "  - {class_path: StatsMonitor, init_args: {watch: [{params: '*', tensors: grad, stats: norm}]}}\n"


@pytest.mark.parametrize("content", [ALONE, BESIDE], ids=["alone", "beside a monitor of other rows"])
@pytest.mark.parametrize("own", [False, True], ids=["a script without monitor", "a script with a monitor"])
def test_a_health_monitor_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str, own: bool
) -> None:
    configured(tmp_path, monkeypatch, content)
    logger = TensorBoardLogger(tmp_path / "logs")
    mine = [StatsMonitor([Watch(params="*", tensors="grad", stats="norm")])] if own else []
    trainer = trainer_of(tmp_path, *mine, logger=logger)
    (monitor,) = [each for each in trainer.callbacks if isinstance(each, HealthMonitor)]
    trainer.fit(Forgotten(), data(30))
    assert "NotInOptimizer" in rules_of(monitor) and capsys.readouterr().err.count("ParametersForgotten (certain)") == 1
    found = []
    for options in (["--json"], ["--json", "--recompute"]):
        assert main(["findings", logger.log_dir, *options]) == 1
        shown = json.loads(capsys.readouterr().out)
        found.append([(each["rule"], each["rows"], each["first_step"]) for each in shown["findings"]])
    assert found[0] == found[1] != []


def test_recompute_reads_the_rows_of_a_health_monitor_and_not_those_of_a_monitor_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger, monitor = TensorBoardLogger(tmp_path), HealthMonitor(prefix="mine/")
    watch = [Watch(params="*", tensors="grad", stats="norm")]
    trainer_of(tmp_path, StatsMonitor(watch, prefix="a/"), monitor, logger=logger).fit(Forgotten(), data(30))
    capsys.readouterr()
    assert main(["findings", logger.log_dir, "--json", "--recompute"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [each["rule"] for each in shown["findings"]] == [each.rule for each in monitor.findings]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("rules: {DeadUnit: false}", r"there is no health rule 'DeadUnit' \(did you mean 'DeadUnits'"),
        ("rules: {DeadUnits: {patiense: 3}}", "unknown field 'patiense'"),
        ("actions: {critical: halt}", "unknown action 'halt'"),
        ("acept: DeadUnits", "HealthMonitor has no option 'acept'"),
    ],
)
def test_a_wrong_value_in_a_file_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    file = configured(tmp_path, monkeypatch, f"callbacks:\n  - {{class_path: HealthMonitor, init_args: {{{options}}}}}\n")
    with pytest.raises(RuleError, match=rf"^{VARIABLE}: {file}: callbacks\[0\]: .*{message}"):
        trainer_of(tmp_path)
