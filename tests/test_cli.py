"""The command line and every file in `configs/`, run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightning_hooks import read_run
from lightning_hooks.cli import main

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
QUICK = ["--trainer.max_steps=6", "--trainer.limit_val_batches=1", "--trainer.enable_progress_bar=false"]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")


def run(*arguments, env=None):
    command = [str(Path(sys.executable).with_name("lightning-hooks")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})


def config_of(tmp_path, callbacks):
    base = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text())
    base["trainer"]["callbacks"] = callbacks
    base["trainer"]["logger"]["init_args"]["save_dir"] = str(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(base))
    return str(path)


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.name != "environment.yaml"], ids=lambda c: c.name)
def test_every_config_is_matched_and_run(config, tmp_path):
    content = yaml.safe_load(config.read_text())
    configs = ["--config", str(config)]
    if "model" not in content:
        configs = ["--config", "configs/digits.yaml", *configs]
    matched = run("match", *configs)
    assert matched.returncode == 0, matched.stderr
    assert "bytes/1k steps" in matched.stdout
    fitted = run("fit", *configs, f"--trainer.logger.init_args.save_dir={tmp_path}", *QUICK)
    assert fitted.returncode == 0, fitted.stderr
    (events,) = tmp_path.rglob("*tfevents*")
    found = read_run(events.parent)
    assert found.tensors(), "no table was written"
    assert any(tag.startswith("update_ratio/") for tag in found.scalars)


def test_the_environment_adds_callbacks_to_a_script_that_does_not_know_of_them(tmp_path):
    script = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
if sys.argv[1] == "lightning":
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.loggers import TensorBoardLogger
else:
    from pytorch_lightning import Trainer
    from pytorch_lightning.demos.boring_classes import BoringModel
    from pytorch_lightning.loggers import TensorBoardLogger
logger = TensorBoardLogger(sys.argv[2], name="", version="")
quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
Trainer(max_steps=20, logger=logger, **quiet).fit(BoringModel())
"""
    for which in ("lightning", "pytorch_lightning"):
        folder = tmp_path / which
        env = {**os.environ, "LIGHTNING_HOOKS_CONFIG": "configs/environment.yaml"}
        done = subprocess.run(
            [sys.executable, "-c", script, which, str(folder)], capture_output=True, text=True, env=env, timeout=120
        )
        assert done.returncode == 0, done.stderr
        steps, values = read_run(folder).scalars["env/update_ratio/layer.weight"]
        assert steps.tolist() == [9, 19]
        assert (values > 0).all()


def test_without_the_variable_the_entry_point_loads_nothing():
    code = (
        "import sys; from lightning_hooks.callbacks.environment import callbacks_from_environment as f; "
        "print(f(), [m for m in ('torch', 'yaml', 'lightning') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[] []\n"


def test_short_names_train_and_write_what_long_ones_do(tmp_path):
    callbacks = [
        {"class_path": "StatsMonitor", "init_args": {"watch": [{"params": "*", "tensors": ["grad"], "stats": ["norm"]}]}},
        {"class_path": "GradientTransforms", "init_args": {"apply": [{"params": "*.bias", "transform": "Zero"}]}},
        {
            "class_path": "StatsMonitor",
            "init_args": {"prefix": "after_", "watch": [{"params": "*.bias", "tensors": "grad", "stats": "norm"}]},
        },
    ]
    done = run("fit", "--config", config_of(tmp_path, callbacks), *QUICK)
    assert done.returncode == 0, done.stderr
    (events,) = tmp_path.rglob("*tfevents*")
    scalars = read_run(events.parent).scalars
    assert (scalars["grad_norm/head.fc1.bias"][1] > 0).all()
    assert scalars["after_grad_norm/head.fc1.bias"][1].tolist() == [0] * 6


@pytest.mark.parametrize("command", ["fit", "match"])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"params": "*", "tensors": ["gard"]}, "watch[0].tensors: unknown tensor 'gard' (did you mean 'grad'"),
        ({"parms": "*"}, "watch[0]: unknown key 'parms' (did you mean 'params'"),
        ({"modules": "fetures.*"}, "watch[0].modules: 'fetures.*' matches nothing; the nearest names are 'features', "),
        ({"params": "*", "stats": ["nrom"]}, "watch[0].stats[0]: unknown statistic 'nrom' (did you mean 'norm'"),
    ],
)
def test_a_wrong_rule_ends_in_one_line(command, rule, message, tmp_path, capsys):
    config = config_of(tmp_path, [{"class_path": "lightning_hooks.StatsMonitor", "init_args": {"watch": [rule]}}])
    assert main([command, "--config", config, *QUICK]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lightning-hooks: error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not list(tmp_path.rglob("*.ckpt"))


def test_match_trains_nothing_and_shows_what_there_is(tmp_path, capsys):
    rule = {"params": "head.*.weight", "tensors": ["grad", "update"], "stats": ["norm", "std"]}
    config = config_of(tmp_path, [{"class_path": "lightning_hooks.StatsMonitor", "init_args": {"watch": [rule]}}])
    assert main(["match", "--config", config]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if "head.fc2.weight" in line]
    assert row[:4] == ["watch[0]", "head.fc2.weight", "Parameter", "10×64"]
    assert "2 matches, 8 tags, about 0.3 MB on disk per 1,000 logged steps" in lines
    assert not list(tmp_path.rglob("*tfevents*"))


def test_usage_and_unknown_commands(capsys):
    assert main(["--help"]) == 0
    assert "lightning-hooks COMMAND --config FILE" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["train"]) == 2
    assert "unknown command 'train'; there are fit, match" in capsys.readouterr().err


def test_a_missing_environment_file_is_named(monkeypatch):
    from lightning_hooks import RuleError
    from lightning_hooks.callbacks.environment import callbacks_from_environment

    monkeypatch.setenv("LIGHTNING_HOOKS_CONFIG", "nowhere.yaml")
    with pytest.raises(RuleError, match="^LIGHTNING_HOOKS_CONFIG: there is no file 'nowhere.yaml'$"):
        callbacks_from_environment()
