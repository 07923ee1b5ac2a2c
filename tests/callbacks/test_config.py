"""Callbacks from the environment variable, from YAML by themselves, and from Hydra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import OmegaConf

from lightning_hooks import (
    Apply,
    GradientTransforms,
    RuleError,
    StatsMonitor,
    UnsupportedError,
    Watch,
    assert_no_hooks,
    read_run,
)
from lightning_hooks.callbacks._config import load_callbacks
from lightning_hooks.callbacks.environment import (
    VARIABLE,
    callbacks_for_pytorch_lightning,
    callbacks_from_environment,
)
from lightning_hooks.transforms import ClipByGlobalNorm, Scale, Zero
from tests import forked
from tests.callbacks._tiny import Keeper, Line, loader, make
from tests.callbacks.models import Gan, data

HOOKS = """
callbacks:
  - class_path: lightning_hooks.StatsMonitor
    init_args:
      watch:
        - {params: "*", tensors: [grad, update], stats: [norm]}
  - class_path: GradientTransforms
    init_args:
      apply:
        - {params: "*", transform: {class_path: ClipByGlobalNorm, init_args: {max_norm: 5e-1}}}
        - {params: "*", transform: {class_path: lightning_hooks.transforms.Scale, init_args: {factor: 2}}}
"""

# A script that knows nothing of this package; what follows the fit only tells the test what happened.
SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader
import {package} as pl
from {package}.callbacks import Callback
from {package}.loggers import CSVLogger

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1, bias=False)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

model = Model()
start = model.layer.weight.detach().clone()
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=CSVLogger("."), log_every_n_steps=1,
                     enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
trainer.fit(model, DataLoader([torch.tensor([[3.0, 4.0]])], batch_size=None))
print("MOVED", *(round(x, 4) for x in (start - model.layer.weight.detach()).flatten().tolist()))
print("OURS", *(type(c).__name__ for c in trainer.callbacks if type(c).__module__.startswith("lightning_hooks")))
print("HOOKS", len(model.layer._forward_hooks), len(model.layer.weight._backward_hooks or ()))
"""


def written(folder: Path, content: str, name: str = "hooks.yaml") -> Path:
    path = folder / name
    path.write_text(content)
    return path


# -- the environment variable ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_an_unchanged_script_gets_the_callbacks(tmp_path: Path, package: str) -> None:
    script = written(tmp_path, SCRIPT.format(package=package), "train.py")
    path = written(tmp_path, HOOKS)
    done = forked.run([str(script)], {**os.environ, VARIABLE: str(path)}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "OURS StatsMonitor GradientTransforms" in lines
    assert "MOVED 0.6 0.8" in lines  # (3, 4) clipped to norm 0.5, doubled
    assert "HOOKS 0 0" in lines
    assert not list(tmp_path.rglob("metrics.csv"))  # the script itself logs nothing
    (said,) = [line for line in done.stderr.splitlines() if "lightning_hooks writes" in line]
    assert said.endswith(
        f"lightning_hooks writes to {tmp_path}/lightning_hooks_logs/run_0: tensorboard --logdir {tmp_path}/lightning_hooks_logs"
    )
    values = {tag: numbers.tolist() for tag, (_, numbers) in read_run(tmp_path / "lightning_hooks_logs/run_0").scalars.items()}
    assert values["watch/environment/grad_norm/layer.weight"] == pytest.approx([5.0])
    assert values["watch/environment/update_norm/layer.weight"] == pytest.approx([1.0], rel=1e-4)
    assert values["watch/environment/transform_norm_after/0_ClipByGlobalNorm"] == pytest.approx([0.5], rel=1e-4)


def test_without_the_variable_nothing_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "for group in ('lightning.pytorch.callbacks_factory', 'pytorch_lightning.callbacks_factory'):\n"
        "    (point,) = [p for p in entry_points(group=group) if p.name == 'lightning_hooks']\n"
        "    assert point.load()() == []\n"
        "print([name for name in ('torch', 'yaml', 'lightning', 'numpy', 'tensorboard') if name in sys.modules])\n"
    )
    environment = {**os.environ, VARIABLE: ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def test_without_the_variable_a_trainer_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert callbacks_from_environment() == []
    assert not [c for c in make(tmp_path).callbacks if isinstance(c, StatsMonitor)]


def test_they_come_after_the_scripts_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watch = [Watch(params="*", tensors=["grad"], stats=["norm"])]
    own = [GradientTransforms([Apply(Scale(0.5), params="layer.*")]), StatsMonitor(watch)]
    options = "init_args:\n      prefix: env/\n      loggers: all\n      watch"
    monkeypatch.setenv(VARIABLE, str(written(tmp_path, HOOKS.replace("init_args:\n      watch", options))))
    monkeypatch.chdir(tmp_path)
    keeper, model = Keeper(), Line()
    trainer = make(tmp_path, *own, logger=keeper)
    assert [type(c).__name__ for c in trainer.callbacks if type(c).__module__.startswith("lightning_hooks")] == [
        "GradientTransforms",
        "StatsMonitor",
        "StatsMonitor",
        "GradientTransforms",
    ]
    trainer.fit(model, loader([3.0, 4.0]))
    assert keeper.lines[0]["grad_norm/layer.weight"] == pytest.approx(2.5)
    assert keeper.lines[0]["env/grad_norm/layer.weight"] == pytest.approx(2.5)
    assert model.w == pytest.approx([-0.6, -0.8], rel=1e-4)
    assert {tag.rpartition("/")[2] for tag in keeper.lines[0] if "transform_norm_before" in tag} == {
        "0_Scale",
        "1_ClipByGlobalNorm",
        "2_Scale",
    }
    assert_no_hooks(model)


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "nowhere.yaml")
    said = r"^LIGHTNING_HOOKS_CONFIG: there is no file 'nowhere\.yaml' in \S+ \(give an absolute path\)$"
    with pytest.raises(RuleError, match=said) as raised:
        Trainer(logger=False)
    assert os.getcwd() in str(raised.value)


def test_a_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(RuleError, match=f"^LIGHTNING_HOOKS_CONFIG: {str(tmp_path)!r} is a folder; name a file in it$"):
        Trainer(logger=False)


def test_a_relative_path_is_found_from_other_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = written(tmp_path, HOOKS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "hooks.yaml")
    assert len(callbacks_from_environment()) == 2
    assert os.environ[VARIABLE] == str(path)  # for processes that are started from here
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(callbacks_from_environment()) == 2
    # A worker that has changed its folder before anything of this package was loaded.
    monkeypatch.setenv(VARIABLE, "hooks.yaml")
    monkeypatch.setenv("PWD", str(tmp_path))
    assert len(callbacks_from_environment()) == 2 and os.environ[VARIABLE] == str(path)


@pytest.mark.skipif(find_spec("lightning") is None, reason="only pytorch_lightning is installed")
def test_a_pytorch_lightning_below_2_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(written(tmp_path, HOOKS)))
    assert len(callbacks_for_pytorch_lightning()) == 2
    monkeypatch.setattr("importlib.metadata.version", {"lightning": "2.6.1", "pytorch-lightning": "1.9.5"}.__getitem__)
    expected = r"^LIGHTNING_HOOKS_CONFIG: lightning_hooks needs Lightning 2\.5 or newer, and pytorch_lightning is 1\.9\.5; pip"
    with pytest.raises(UnsupportedError, match=expected):
        callbacks_for_pytorch_lightning()
    assert len(callbacks_from_environment()) == 2  # for the Trainer of `lightning`
    monkeypatch.delenv(VARIABLE)
    assert callbacks_for_pytorch_lightning() == []


def test_the_users_own_loggers_and_curves_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a TensorBoard there is one of our own; with one the tags have a prefix of their own."""
    monkeypatch.chdir(tmp_path)
    logger = TensorBoardLogger(tmp_path, name="tb")
    everything = (
        "{modules: '*', tensors: [input, output, output_grad]}, {params: '*', tensors: [param, grad, final_grad, update]}"
    )
    content = f"callbacks: [{{class_path: StatsMonitor, init_args: {{watch: [{everything}]}}}}]"
    plain, watched = Keeper(), Keeper()
    weights = []
    for keeper, more in ((plain, []), (watched, []), (Keeper(), [logger])):
        if keeper is not plain:
            monkeypatch.setenv(VARIABLE, str(written(tmp_path, content)))
        model = Line()
        make(tmp_path, logger=[keeper, *more]).fit(model, loader([3.0, 4.0], [3.0, 4.0]))
        assert_no_hooks(model)
        assert keeper.lines == plain.lines
        weights.append(model.w)
    assert weights[1:] == weights[:1] * 2
    assert [path.name for path in (tmp_path / "lightning_hooks_logs").iterdir()] == ["run_0"]
    for folder in (tmp_path / "lightning_hooks_logs/run_0", logger.log_dir):
        run = read_run(folder)
        assert "watch/environment/grad_norm/layer.weight" in run.scalars and "watch/environment/run/grad_norm" in run.scalars
        assert {tag.partition("/")[0] for tag in run.scalars} <= {"watch", "epoch"}
        assert "watch/environment/run/rules" in run.texts


def test_the_file_may_say_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = "callbacks: [{class_path: StatsMonitor, init_args: {prefix: '', loggers: all, logdir: mine, max_scalars: 500}}]"
    monkeypatch.setenv(VARIABLE, str(written(tmp_path, content)))
    monkeypatch.chdir(tmp_path)
    keeper = Keeper()
    make(tmp_path, logger=keeper).fit(Line(), loader([3.0, 4.0]))
    assert keeper.lines[0]["grad_norm/layer.weight"] == 5.0
    assert read_run(tmp_path / "mine/run_0").scalars["grad_norm/layer.weight"][1].tolist() == [5.0]


def test_reports_of_transforms_alone_have_the_same_board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = "callbacks: [{class_path: GradientTransforms, init_args: {apply: [{params: '*', transform: Zero}]}}]"
    monkeypatch.setenv(VARIABLE, str(written(tmp_path, content)))
    monkeypatch.chdir(tmp_path)
    make(tmp_path).fit(Line(), loader([3.0, 4.0]))
    scalars = read_run(tmp_path / "lightning_hooks_logs/run_0").scalars
    assert scalars["watch/environment/transform_norm_before/0_Zero"][1].tolist() == [5.0]


LENIENT = """
callbacks:
  - class_path: StatsMonitor
    init_args:
      loggers: all
      prefix: ""
      scalars: [encoder.*, "*.weight"]
      watch:
        - {modules: encoder, tensors: output, strict: %(strict)s}
        - {params: "*", tensors: [grad, state.exp_avg], stats: norm, strict: %(strict)s}
  - {class_path: GradientTransforms, init_args: {apply: [{params: "encoder.*", transform: Zero, strict: %(strict)s}]}}
  - {class_path: ActivationCapture, init_args: {modules: encoder, every_n_steps: 1, strict: %(strict)s}}
"""


@pytest.mark.parametrize("model", [Line, Gan], ids=["SGD", "SGD and Adam"])
def test_one_lenient_file_serves_several_models_and_optimizers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Any
) -> None:
    path = written(tmp_path, LENIENT % {"strict": "false"})
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.chdir(tmp_path)
    keeper = Keeper()
    with pytest.warns(UserWarning) as caught:
        make(tmp_path, logger=keeper).fit(model(), loader([3.0, 4.0], [3.0, 4.0]) if model is Line else data(2))
    last = keeper.lines[max(keeper.lines)]
    assert {tag.rpartition("/")[2].partition(".")[0] for tag in last if tag.startswith("state.exp_avg")} == (
        set() if model is Line else {"disc"}
    )
    assert any(tag.startswith("grad_norm/") for tag in last)
    ours = [str(w.message) for w in caught if "matches" in str(w.message) or "exp_avg" in str(w.message)]
    where = f"LIGHTNING_HOOKS_CONFIG: {path}: callbacks"
    assert all(message.startswith(where) and "Set strict" not in message for message in ours)
    starts = [
        "[0]: StatsMonitor: watch[0].modules: 'encoder' matches nothing; the nearest names are",
        "[1]: GradientTransforms: apply[0].params: 'encoder.*' matches nothing; the nearest names are",
        "[1]: GradientTransforms: no rule matches anything (apply[0]); it does nothing in this run",
        "[2]: ActivationCapture: modules: 'encoder' matches nothing; the nearest names are",
        "[2]: ActivationCapture: no rule matches anything (modules=('encoder',)); it does nothing in this run",
        "[0]: StatsMonitor: watch[1].tensors: 'state.exp_avg': SGD has no 'exp_avg'; it keeps nothing for this parameter",
    ]
    assert len(ours) == len(starts)
    for start in starts:
        assert any(message.startswith(f"{where}{start}") for message in ours), start
    assert not (tmp_path / "captures").exists()


def test_strict_errors_name_the_callback_and_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for content, said in (
        (
            "{class_path: ActivationCapture, init_args: {modules: a, every_n_steps: 1}}",
            "ActivationCapture: modules: 'a' matches",
        ),
        (
            "{class_path: StatsMonitor, init_args: {watch: [{params: '*', tensors: state.exp_avg}]}}",
            "StatsMonitor: watch[0].tensors: 'state.exp_avg': SGD has no 'exp_avg'; it keeps nothing for this parameter. Set "
            "strict=False if this is intended",
        ),
        (
            "{class_path: StatsMonitor, init_args: {scalars: a}}",
            "StatsMonitor: scalars: 'a' matches nothing; the nearest names",
        ),
    ):
        path = written(tmp_path, f"callbacks: [{content}]")
        monkeypatch.setenv(VARIABLE, str(path))
        model = Line()
        with pytest.raises(RuleError) as raised:
            make(tmp_path).fit(model, loader([3.0, 4.0]))
        assert str(raised.value).startswith(f"LIGHTNING_HOOKS_CONFIG: {path}: callbacks[0]: {said}")
        assert "scalars" not in said or "Set strict" not in str(raised.value)
        assert_no_hooks(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "callbacks: [StatsMonitr]",
            "callbacks[0]: 'StatsMonitr' is not a callback of lightning_hooks (did you mean 'StatsMonitor'",
        ),
        (
            "callbacks: [{class_path: lightning_hooks.transforms.Zero}]",
            "callbacks[0]: 'lightning_hooks.transforms.Zero' is not a callback of lightning_hooks",
        ),
        (
            "callbacks: [StatsMonitor, {class_path: lightning.pytorch.callbacks.Timer}]",
            "callbacks[1]: 'lightning.pytorch.callbacks.Timer' is not a callback of lightning_hooks",
        ),
        ("callbacks: [other.StatsMonitor]", "callbacks[0]: 'other.StatsMonitor' is not a callback of lightning_hooks"),
        ("callbacks: [{watch: []}]", "callbacks[0] needs class_path (and init_args), got {'watch': []}"),
        (
            "callbacks: [{class_path: StatsMonitor, every_n_steps: 10, watch: []}]",
            "callbacks[0]: StatsMonitor: unknown key 'every_n_steps', 'watch' beside class_path and init_args; arguments go "
            "under init_args: {every_n_steps: …, watch: …}",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {}, prefix: x}]",
            "callbacks[0]: StatsMonitor: unknown key 'prefix' beside class_path and init_args",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: [watch]}]",
            "callbacks[0]: StatsMonitor.init_args must be a mapping of arguments to values, got ['watch']",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {stages: null}}]",
            "callbacks[0]: StatsMonitor: stages must be one or more of train, validate, test, predict, got None; omit it for",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {every_n_steps: []}}]",
            "callbacks[0]: StatsMonitor: every_n_steps is an empty list; give an integer of at least 1",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {every_n_steps: '10'}}]",
            "callbacks[0]: StatsMonitor: every_n_steps must be an integer of at least 1",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {max_scalars: '500'}}]",
            "callbacks[0]: StatsMonitor: max_scalars must be an integer of at least 0, got '500'",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {watch: [{modules: '*', strict: 'false'}]}}]",
            "callbacks[0]: StatsMonitor: watch[0].strict must be True or False (in YAML true or false, without quotes), got",
        ),
        (
            "callbacks: [{class_path: ActivationCapture, init_args: {modules: a, stages: predict, tensorboard: 'no'}}]",
            "callbacks[0]: ActivationCapture: tensorboard must be True or False (in YAML true or false, without quotes), got",
        ),
        (
            "callbacks: [{class_path: GradientTransforms, init_args: {apply: [{params: '*', transform: Zero, stage: step}]}}]",
            "callbacks[0]: GradientTransforms: apply[0]: unknown key 'stage'; it is called when: 'step' or 'backward'",
        ),
        ("callbacks: StatsMonitor", "must hold a list of callbacks, under 'callbacks' or 'trainer: callbacks'"),
        ("", "must hold a list of callbacks, under 'callbacks' or 'trainer: callbacks'"),
        ("callbacks: [", "is not valid YAML (while parsing a flow node"),
        (
            "callbacks:\n- class_path: StatsMonitor\n  init_args:\n    prefix: a/\n    max_scalars: 1\n    prefix: b/",
            "is not valid YAML (the key 'prefix' is in line 4 already in ",
        ),
        ("{day: 2026-13-40, callbacks: [StatsMonitor]}", "is not valid YAML (month must be in 1..12"),
        (
            "callbacks: [{class_path: FlightRecorder, init_args: {on: exception}}]",
            'callbacks[0]: FlightRecorder: YAML reads a bare on: as true; write "on": in quotes',
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {wach: []}}]",
            "callbacks[0]: StatsMonitor has no option 'wach' (did you mean 'watch'",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {watch: [{params: '*', stats: [nrom]}]}}]",
            "callbacks[0]: StatsMonitor: watch[0].stats[0]: unknown statistic 'nrom' (did you mean 'norm'",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {watch: [{params: '*', tensors: [output]}]}}]",
            "callbacks[0]: StatsMonitor: watch[0].tensors: 'output' is a tensor of modules",
        ),
        (
            "callbacks: [{class_path: GradientTransforms, init_args: {apply: [{params: '*', transform: ClipByNorm}]}}]",
            "callbacks[0]: GradientTransforms: apply[0].transform: ClipByNorm.__init__() missing 1 required positional",
        ),
    ],
)
def test_a_wrong_file_says_where_and_why(tmp_path: Path, content: str, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(RuleError) as caught:
        load_callbacks(path, "LIGHTNING_HOOKS_CONFIG")
    text = str(caught.value)
    assert text.startswith(f"LIGHTNING_HOOKS_CONFIG: {path}")
    assert message in text
    assert "\n" not in text


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "callbacks: [StatsMonitor]")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)  # a test that runs as root may read every file
    with pytest.raises(RuleError, match=rf"^x: {re.escape(str(path))} cannot be read \(Permission denied\)$"):
        load_callbacks(path, "x")


BOMB = "a0: &a0 [x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
MERGED = "a0: &a0 {k: x}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{BOMB}callbacks: *a11", "is not valid YAML (with its aliases written out it has more than 1,000,000 characters in "),
        (
            f"{MERGED}callbacks: *a11",
            "is not valid YAML (with its aliases written out it has more than 1,000,000 characters in ",
        ),
        ("callbacks: &a [*a]", "is not valid YAML (an alias stands for what holds it in "),
        ("callbacks: " + "[" * 20_000, "is not valid YAML (it is nested too deep)"),
        ("callbacks: " + "[" * 150 + "]" * 150, "callbacks[0] needs class_path (and init_args), got [[[["),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {watch: [{modules: 're:a{1,99999999999}'}]}}]",
            "watch[0].modules: 're:a{1,99999999999}' is not a valid regular expression (the repetition number is too large)",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {watch: [{modules: 're:%s'}]}}]" % ("(" * 5000 + ")" * 5000),
            "is not a valid regular expression (it is nested too deep)",
        ),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {watch: [{modules: [[%s]]}]}}]" % ("x, " * 50_000),
            "watch[0].modules[0] must be a string, got ['x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', ...]",
        ),
        ("callbacks: [%s]" % ("x" * 500_000), "is not a callback of lightning_hooks"),
        ("callbacks: [{class_path: StatsMonitor, init_args: {%s: 1}}]" % ("x" * 900), "StatsMonitor has no option 'xxx"),
        (
            "callbacks: [{class_path: StatsMonitor, init_args: {watch: [{modules: 0x%s}]}}]" % ("f" * 5000),
            "StatsMonitor: watch[0].modules[0] must be a string, got <an integer of 20000 bits>",
        ),
    ],
    ids=["bomb", "merged", "recursive", "open", "deep", "repetition", "groups", "list", "path", "option", "integer"],
)
def test_whatever_a_file_holds_the_message_is_short(tmp_path: Path, content: str, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(RuleError) as caught:
        load_callbacks(path, "LIGHTNING_HOOKS_CONFIG")
    text = str(caught.value)
    assert text.startswith(f"LIGHTNING_HOOKS_CONFIG: {path}") and message in text
    assert len(text) < 2500 and "\n" not in text


def test_two_lists_of_callbacks_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "callbacks: [StatsMonitor]\ntrainer: {callbacks: [StatsMonitor]}")
    said = (
        r"^LIGHTNING_HOOKS_CONFIG: .* has both 'callbacks' and 'trainer: callbacks'; keep one: 'callbacks' is for this variable"
    )
    with pytest.raises(RuleError, match=said):
        load_callbacks(path, "LIGHTNING_HOOKS_CONFIG")
    assert len(load_callbacks(written(tmp_path, "callbacks: [StatsMonitor]\ntrainer: {max_epochs: 1}"), "x")) == 1


def test_keys_that_are_merged_may_be_there_twice(tmp_path: Path) -> None:
    content = (
        "common: &common {prefix: a/, max_scalars: 3}\n"
        "callbacks: [{class_path: StatsMonitor, init_args: {<<: *common, prefix: c/}}]"
    )
    (callback,) = load_callbacks(written(tmp_path, content), "x")
    assert repr(callback) == "StatsMonitor(max_scalars=3, prefix='c/')"


def test_the_shapes_of_a_file(tmp_path: Path) -> None:
    for content in ("[StatsMonitor]", "callbacks: [StatsMonitor]", "trainer: {callbacks: [lightning_hooks.StatsMonitor]}"):
        (callback,) = load_callbacks(written(tmp_path, content), "x")
        assert repr(callback) == "StatsMonitor()"
    monitor, change = load_callbacks(written(tmp_path, HOOKS), "x")
    assert repr(monitor) == "StatsMonitor(watch=[Watch(params='*', tensors=('grad', 'update'), stats=('norm',))])"
    # 5e-1 is a number, although PyYAML alone reads a string.
    assert isinstance(change, GradientTransforms)
    assert change.apply == [Apply(ClipByGlobalNorm(0.5), params="*"), Apply(Scale(2), params="*")]
    for other in ("2e4b-long", "1e5.", "-1e", "._e3"):  # begin as a number, and are strings
        assert load_callbacks(written(tmp_path, f"{{tag: {other}, callbacks: [StatsMonitor]}}"), "x")


# -- Hydra -----------------------------------------------------------------------------------------------------------------

TARGETS = """
- _target_: lightning_hooks.StatsMonitor
  every_n_steps: {first: 0, every: 1}
  scalars: ["layer.*"]
  watch:
    - {_target_: lightning_hooks.Watch, params: ["*", "!*.bias"], tensors: [grad, update], stats: [norm]}
- _target_: lightning_hooks.GradientTransforms
  apply:
    - {_target_: lightning_hooks.Apply, params: "*", transform: {_target_: lightning_hooks.transforms.Scale, factor: 0.5}}
    - _target_: lightning_hooks.Apply
      params: ["layer.*"]
      transform:
        - {_target_: lightning_hooks.transforms.ClipByGlobalNorm, max_norm: 1.0}
        - {_target_: lightning_hooks.transforms.Scale, factor: 2.0}
"""
MAPPINGS = """
- _target_: lightning_hooks.StatsMonitor
  every_n_steps: {first: 0, every: 1}
  scalars: ["layer.*"]
  watch:
    - {params: ["*", "!*.bias"], tensors: [grad, update], stats: [norm]}
- _target_: lightning_hooks.GradientTransforms
  apply:
    - {params: "*", transform: {class_path: lightning_hooks.transforms.Scale, init_args: {factor: 0.5}}}
    - params: ["layer.*"]
      transform: [{class_path: ClipByGlobalNorm, init_args: {max_norm: 1.0}}, {class_path: Scale, init_args: {factor: 2.0}}]
"""


@pytest.mark.parametrize(
    ("content", "convert"),
    [(MAPPINGS, None), (MAPPINGS, "all"), (TARGETS, "all"), (TARGETS, "object"), (TARGETS, "partial")],
    ids=["mappings", "mappings-all", "targets-all", "targets-object", "targets-partial"],
)
def test_hydra_builds_the_callbacks(tmp_path: Path, content: str, convert: str | None) -> None:
    options: dict[str, Any] = {} if convert is None else {"_convert_": convert}
    callbacks = list(instantiate(OmegaConf.create(content), **options))
    monitor, change = callbacks
    assert change.apply == [
        Apply(Scale(0.5), params="*"),
        Apply([ClipByGlobalNorm(1.0), Scale(2.0)], params=["layer.*"]),
    ]
    keeper, model = Keeper(), Line()
    make(tmp_path, monitor, change, logger=keeper).fit(model, loader([6.0, 8.0]))
    assert keeper.lines[0]["grad_norm/layer.weight"] == pytest.approx(10.0)
    assert keeper.lines[0]["update_norm/layer.weight"] == pytest.approx(2.0, rel=1e-5)
    assert model.w == pytest.approx([-1.2, -1.6], rel=1e-5)


def test_hydra_cannot_hold_rules_of_ours_unless_it_converts() -> None:
    # OmegaConf takes any dataclass for a schema of its own: hence `_convert_`, or plain mappings.
    with pytest.raises(Exception, match="Unions of containers are not supported"):
        instantiate(OmegaConf.create(TARGETS))


def test_hydra_errors_name_the_rule() -> None:
    config = OmegaConf.create(
        {"_target_": "lightning_hooks.GradientTransforms", "apply": [{"params": "*", "transform": "Zer"}]}
    )
    with pytest.raises(Exception, match=r"apply\[0\]\.transform: unknown transform 'Zer' \(did you mean 'Zero'"):
        instantiate(config)
    config.apply[0].transform = "Zero"
    assert instantiate(config).apply == [Apply(Zero(), params="*")]
