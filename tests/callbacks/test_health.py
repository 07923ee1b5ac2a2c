"""`HealthMonitor` in a fit: alone and beside a monitor, what it says once, and that it changes nothing."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from lightning_hooks import HealthMonitor, RuleError, StatsMonitor, assert_no_hooks, read_run
from lightning_hooks.cli.main import main
from lightning_hooks.health import HealthRule
from lightning_hooks.health.reporter import HealthError
from lightning_hooks.health.rule import Symptom
from tests.callbacks.models import Gan, Net, ValNet, adamw, data, trainer_of
from tests.conformance.test_precision import scaler


class Dead(Net):
    """The units of its rectifier never fire."""

    def __init__(self, log: bool = False) -> None:
        super().__init__(adamw, dropout=0.0, log=log)
        nn.init.constant_(self.body[0].bias, -100.0)


class Forgotten(Net):
    """The optimizer does not hold the last layer."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.body[0].parameters(), lr=0.1)


class Sick(Net):
    """The loss is not finite from one batch on."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * float("inf") if batch_idx >= 3 else loss


def rules_of(monitor: HealthMonitor) -> set[str]:
    return {finding.rule for finding in monitor.findings}


@pytest.mark.parametrize("beside", [True, False])
def test_a_forgotten_layer_is_told_once_with_its_cause(
    tmp_path: Path, beside: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = HealthMonitor()
    trainer_of(tmp_path, *([StatsMonitor(loggers=[])] if beside else []), monitor).fit(Forgotten(), data(30))
    finding = next(finding for finding in monitor.findings if finding.rule == "NotInOptimizer")
    assert set(finding.rows) == {"body.3.weight", "body.3.bias"} and finding.first_step == 0
    assert [cause.name for cause in monitor.causes] == ["ParametersForgotten"]
    assert capsys.readouterr().err.count("ParametersForgotten (certain)") == 1


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Net, {}),
        (lambda: Net(adamw), {"accumulate_grad_batches": 3}),
        (Gan, {}),
        (ValNet, {"val_check_interval": 3}),
        (Net, {"precision": "bf16-mixed"}),
        (Net, {"plugins": "scaler"}),
        (Net, {"gradient_clip_val": 0.1}),
    ],
    ids=["plain", "accumulation", "gan", "validation", "bf16", "scaler", "clipping"],
)
@pytest.mark.parametrize("beside", [True, False])
def test_weights_are_the_same_bits(tmp_path: Path, make: Any, options: dict[str, Any], beside: bool) -> None:
    def weights(*callbacks: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model = make()
        torch.manual_seed(1)
        chosen = {name: scaler() if value == "scaler" else value for name, value in options.items()}
        loaders = (data(12), data(2)) if make is ValNet else (data(12),)
        trainer_of(tmp_path, *callbacks, **chosen).fit(model, *loaders)
        assert_no_hooks(model)
        return [parameter.detach().clone() for parameter in model.parameters()]

    others = [StatsMonitor(loggers=[])] if beside else []
    watched = weights(*others, HealthMonitor())
    assert all(map(torch.equal, weights(), watched))


def test_a_healthy_fit_says_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer_of(tmp_path, StatsMonitor(loggers=[]), HealthMonitor()).fit(Net(adamw), data(20))
    verdicts = ("Healthy", "No problem found", "Not healthy", "WARNING")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith(verdicts)]
    assert line.startswith("No problem found in 20 steps; the loss went from ")
    assert len(line.partition(" Diagnosis: ")[0]) <= 100


def test_findings_are_in_files_in_the_event_file_and_computed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger, monitor = TensorBoardLogger(tmp_path), HealthMonitor()
    trainer_of(tmp_path, StatsMonitor(), monitor, logger=logger).fit(Forgotten(), data(40))
    folder = Path(logger.log_dir)
    events = [json.loads(line) for line in (folder / "findings.jsonl").read_text("utf-8").splitlines()]
    assert {event["finding"]["rule"] for event in events if "finding" in event} == rules_of(monitor)
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert summary["steps"] == 40 and [cause["name"] for cause in summary["causes"]] == ["ParametersForgotten"]
    assert "ParametersForgotten" in read_run(folder).texts["watch/run/findings"]
    capsys.readouterr()
    assert main(["doctor", str(folder)]) == 1
    assert "ParametersForgotten (certain)" in capsys.readouterr().out
    found = []
    for options in (["--json"], ["--json", "--recompute"]):
        assert main(["doctor", str(folder), *options]) == 1
        shown = json.loads(capsys.readouterr().out)
        found.append([(each["rule"], each["rows"], each["first_step"]) for each in shown["runs"][0]["findings"]])
    assert found[0] == found[1] and found[0]
    assert main(["doctor", str(folder), "--json", "--since", "1000"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["findings"] == []
    assert main(["doctor", str(folder), "--follow"]) == 1
    assert f"{folder}: not healthy, 1 problem in 40 steps." in capsys.readouterr().out


def test_a_run_without_health_rules_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = TensorBoardLogger(tmp_path)
    trainer_of(tmp_path, StatsMonitor(), logger=logger).fit(Net(), data(3))
    assert main(["doctor", logger.log_dir]) == 0
    assert "no HealthMonitor was active" in capsys.readouterr().out


def test_a_run_that_is_not_there_or_damaged_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--follow"]):
        assert main(["doctor", str(tmp_path / "nowhere"), *options]) == 2
        assert "there is no run" in capsys.readouterr().err
        (tmp_path / "summary.json").write_text("{", encoding="utf-8")
        with pytest.warns(UserWarning, match="summary.json is ignored"):
            assert main(["doctor", str(tmp_path), *options]) == 2
        assert "summary.json is damaged, and there is no findings.jsonl beside it" in capsys.readouterr().err


def test_a_healthy_run_says_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = TensorBoardLogger(tmp_path)
    trainer_of(tmp_path, StatsMonitor(), HealthMonitor(), logger=logger).fit(Net(adamw), data(20))
    (event_file,) = Path(logger.log_dir).glob("events*")
    capsys.readouterr()
    for path in (logger.log_dir, str(event_file)):
        for options in ([], ["--follow"]):
            assert main(["doctor", path, *options]) == 0
            assert capsys.readouterr().out.startswith(f"{path}: no problem found in 20 steps; the loss went from ")


def test_actions_stop_save_call_and_raise(tmp_path: Path) -> None:
    called: list[Any] = []
    monitor = HealthMonitor(actions={"NonFinite": ["checkpoint", "stop", {"call": called.append}, {"focus": 5}]})
    trainer = trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor)
    trainer.fit(Sick(), data(20))
    assert trainer.global_step == 4 and [finding.rule for finding in called] == ["NonFinite"]
    assert [path.name[:10] for path in Path(trainer.default_root_dir).rglob("*.ckpt")] == ["NonFinite_"]
    with pytest.raises(HealthError, match="CRITICAL: NonFinite, since step 3"):
        trainer_of(tmp_path, StatsMonitor(loggers=[]), HealthMonitor(actions={"critical": "raise"})).fit(Sick(), data(20))


class From39(HealthRule):
    """Has a symptom from one step on."""

    def check(self, evidence: Any) -> Any:
        if evidence.step >= 39:
            yield Symptom("", tensor="", step=evidence.step, measured=1.0, threshold=0.0, text="late")


@pytest.mark.parametrize("beside", [True, False])
def test_a_focus_measures_every_one_of_the_next_steps(tmp_path: Path, beside: bool) -> None:
    logger = TensorBoardLogger(tmp_path)
    monitor = HealthMonitor(rules=["DeadUnits", From39(every_n_steps=1, patience=1)], actions={"From39": {"focus": 7}})
    host = [StatsMonitor(every_n_steps=5)] if beside else []
    trainer_of(tmp_path, *host, monitor, logger=logger).fit(Net(adamw), data(60))
    (found,) = read_run(logger.log_dir).monitors()
    steps = [view.step for view in read_run(logger.log_dir).views(prefix=found.prefix)]
    assert [step for step in steps if step >= 30] == [34, *range(39, 47), 49, 54, 59]


def test_an_accepted_finding_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = HealthMonitor(accept=["NotInOptimizer/body.3.*"])
    trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor).fit(Forgotten(), data(20))
    assert "NotInOptimizer" not in rules_of(monitor) and "accepted" in monitor.summary["line"]
    assert "NotInOptimizer," not in capsys.readouterr().err


SEAM = "ResumedOtherwise"


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_a_resume_finds_what_one_run_finds(tmp_path: Path) -> None:
    def fit(steps: int, start: str | None, folder: str) -> tuple[HealthMonitor, Path]:
        torch.manual_seed(0)
        monitor = HealthMonitor()
        saver = ModelCheckpoint(tmp_path / folder, save_last=True, every_n_train_steps=1)
        trainer = trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor, saver, max_steps=steps, enable_checkpointing=True)
        trainer.fit(Dead(), data(60), ckpt_path=start)
        return monitor, tmp_path / folder / "last.ckpt"

    whole, _ = fit(60, None, "whole")
    _, path = fit(13, None, "half")
    resumed, _ = fit(60, str(path), "half")
    # How long a step waits depends on the machine. The second fit begins its numbers and its loader anew, which is a note.
    one, other = (
        [(each.rule, each.rows, each.first_step) for each in monitor.findings if each.rule not in ("WaitsForData", SEAM)]
        for monitor in (whole, resumed)
    )
    assert one == other
    (seam,) = (each for each in resumed.findings if each.rule == SEAM)
    assert SEAM not in rules_of(whole) and seam.severity == "info"
    assert seam.message == (
        "PyTorch's generator stands where the training once began, so that the same numbers are drawn again; "
        "13 batches of an epoch were trained, but the loader begins its order anew."
    )
    assert "NoGradient" in rules_of(whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": {"DeadUnit": False}}, r"rules: there is no health rule 'DeadUnit' .did you mean 'DeadUnits'"),
        ({"rules": {"DeadUnits": {"patiense": 3}}}, r"rules\['DeadUnits'\]: unknown field 'patiense' .did you mean 'patience'"),
        ({"rules": {"DeadUnits": {"patience": 0}}}, "DeadUnits.patience must be an integer of at least 1, got 0"),
        ({"rules": ["LossSpike", "LossSpike"]}, "two rules have the name LossSpike"),
        ({"rules": 3}, "rules must be a list of health rules"),
        ({"accept": "DeadUnit"}, "accept: there is no health rule 'DeadUnit' .did you mean 'DeadUnits'"),
        ({"accept": ["LossSpike", "DedUnits/encoder.*"]}, r"there is no health rule 'DedUnits' .did you mean 'DeadUnits'"),
        ({"accept": "Dad*/encoder"}, r"accept: no health rule matches 'Dad\*'"),
        ({"accept": "LearningRateTooHigh"}, "accept: there is no health rule 'LearningRateTooHigh'"),
        ({"actions": {"fatal": "stop"}}, "actions: 'fatal' is neither a severity nor a rule"),
        ({"actions": {"critical": "halt"}}, "unknown action 'halt'"),
        ({"actions": {"critical": "notify"}}, "'notify' needs an argument"),
        ({"actions": {"critical": {"notify": "ftp://x"}}}, "must be the URL of a webhook"),
        ({"actions": {"critical": {"focus": 0}}}, "must be a number of steps, at least 1"),
        ({"actions": {"critical": {"call": "no_such_module.f"}}}, "no_such_module"),
    ],
)
def test_bad_input_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        HealthMonitor(**options)


class Mine(HealthRule):
    """A rule of a user."""


@pytest.mark.parametrize("accept", ["Mine/*", "*", "*/fc", "Dead*/encoder.*", "LossSpike", ["Mine", "DeadUnits/a/b"]])
def test_rules_that_can_be_accepted(accept: Any) -> None:
    HealthMonitor(rules=[Mine()], accept=accept)
    HealthMonitor(rules={"LossSpike": False}, accept=[] if "Mine" in str(accept) else accept)


def test_it_can_be_typed_again_copied_and_pickled() -> None:
    monitor = HealthMonitor(rules={"LossSpike": False}, accept=["DeadUnits"], actions={"critical": "stop"})
    assert repr(eval(repr(monitor))) == repr(copy.deepcopy(monitor)) == repr(pickle.loads(pickle.dumps(monitor)))
    assert "LossSpike" not in monitor.summary["ran"] and monitor.findings == []


def test_its_repr_shows_the_host_of_a_webhook_alone() -> None:
    actions = {"critical": ["stop", {"notify": "https://hooks.example.org/services/T0/B1"}], "LossSpike": ("warn",)}
    monitor = HealthMonitor(actions=actions)
    shown = {"critical": ["stop", {"notify": "https://hooks.example.org/…"}], "LossSpike": ("warn",)}
    assert repr(monitor) == f"HealthMonitor(actions={shown!r})" and monitor.actions == actions
