"""`HealthMonitor` beside another one, in a match, and from a YAML file by the environment variable."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_hooks import HealthMonitor, RuleError, StatsMonitor, Watch
from lightning_hooks.callbacks._ours import matched
from lightning_hooks.callbacks.environment import VARIABLE
from lightning_hooks.cli.main import main
from lightning_hooks.health.journal import read_findings
from tests import forked
from tests.callbacks.models import Net, adamw, data, trainer_of
from tests.callbacks.test_config import SCRIPT, written
from tests.callbacks.test_health import Forgotten, rules_of


@pytest.mark.parametrize("beside", [True, False])
def test_a_second_health_monitor_is_refused_before_anything_is_written(tmp_path: Path, beside: bool) -> None:
    others = [StatsMonitor(loggers=[])] if beside else []
    monitors = [HealthMonitor(), HealthMonitor(rules=["LossSpike"], prefix="b/")]
    trainer = trainer_of(tmp_path, *others, *monitors)
    message = "there are two HealthMonitors, which would tell each finding twice; keep one"
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
        assert main(["doctor", logger.log_dir, *options]) == 1
        shown = json.loads(capsys.readouterr().out)
        found.append([(each["rule"], each["rows"], each["first_step"]) for each in shown["runs"][0]["findings"]])
    assert found[0] == found[1] != []


def test_recompute_reads_the_rows_of_a_health_monitor_and_not_those_of_a_monitor_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger, monitor = TensorBoardLogger(tmp_path), HealthMonitor(prefix="mine/")
    watch = [Watch(params="*", tensors="grad", stats="norm")]
    trainer_of(tmp_path, StatsMonitor(watch, prefix="a/"), monitor, logger=logger).fit(Forgotten(), data(30))
    capsys.readouterr()
    assert main(["doctor", logger.log_dir, "--json", "--recompute"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [each["rule"] for each in shown["runs"][0]["findings"]] == [each.rule for each in monitor.findings]


def test_an_unchanged_script_is_diagnosed(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", VARIABLE: str(written(tmp_path, ALONE))}
    done = forked.run(["-c", SCRIPT.format(package="lightning.pytorch")], environment, cwd=tmp_path)
    assert done.returncode == 0 and "OURS HealthMonitor" in done.stdout and "HOOKS 0 0" in done.stdout, done.stderr
    assert "No problem found in 1 step; " in done.stderr
    assert read_findings(tmp_path / "lightning_hooks_logs" / "run_0").has_ended


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
