"""The command line: `fit` and `match` in this process, and once as the console script."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.cli import LightningCLI

from lightning_hooks import GradientTransforms, StatsMonitor, backends, read_run
from lightning_hooks.callbacks._config import load_callbacks
from lightning_hooks.cli.main import main
from lightning_hooks.stats import kernels
from tests import forked

# DESIGN.md, word for word.
DESIGN = """
trainer:
  callbacks:
    - class_path: lightning_hooks.StatsMonitor
      init_args:
        watch:
          - {modules: "encoder.*", tensors: [output, output_grad], stats: [mean, std, zero_fraction]}
          - {params: "*.weight", tensors: [param, grad, update], stats: [norm]}
    - class_path: lightning_hooks.GradientTransforms
      init_args:
        apply:
          - {params: "*.bias", transform: {class_path: lightning_hooks.transforms.Zero}}
          - {params: "*", transform: {class_path: lightning_hooks.transforms.ClipByGlobalNorm, init_args: {max_norm: 1.0}}}
"""
SHORT = """
trainer:
  callbacks:
    - class_path: StatsMonitor
      init_args:
        watch:
          - {params: "*.weight", tensors: [grad], stats: [norm]}
    - class_path: GradientTransforms
      init_args:
        apply:
          - {params: "*.bias", transform: {class_path: Zero}}
          - {params: "*", transform: [{class_path: Scale, init_args: {factor: 5e-1}}]}
"""
BASE = """
seed_everything: 1
trainer:
  max_epochs: 1
  limit_train_batches: 2
  accelerator: cpu
  devices: 1
  log_every_n_steps: 1
  enable_progress_bar: false
  enable_model_summary: false
  enable_checkpointing: false
  logger:
    class_path: lightning.pytorch.loggers.TensorBoardLogger
    init_args: {save_dir: ., name: run, version: ""}
model: cli_model.Model
data: cli_model.Data
"""
MODEL = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning_hooks import StepConsumer


class Words(StepConsumer):
    said = []

    def __init__(self, word: str = "step") -> None:
        self.word = word

    def consume(self, view):
        Words.said.append(f"{self.word} {view.step}")


class Model(LightningModule):
    trained = 0
    last = None

    def __init__(self, lazily: bool = False) -> None:
        super().__init__()
        Model.last = self
        if not lazily:
            self.configure_model()

    def configure_model(self):
        if not hasattr(self, "encoder"):
            self.encoder = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))
            self.head = torch.nn.Linear(3, 1)
            self.start = {name: p.detach().clone() for name, p in self.named_parameters()}

    def training_step(self, batch, batch_idx):
        Model.trained += 1
        return self.head(self.encoder(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader([torch.full((2, 4), float(i + 1)) for i in range(200)], batch_size=None)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, as a user's project has one."""
    (tmp_path / "cli_model.py").write_text(MODEL)
    (tmp_path / "base.yaml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_model", raising=False)
    yield tmp_path
    sys.modules.pop("cli_model", None)


def write(content: str, name: str = "hooks.yaml") -> str:
    Path(name).write_text(content)
    return name


def both(*more: str) -> list[str]:
    return [part for name in ("base.yaml", *more) for part in ("--config", name)]


def model() -> Any:
    return sys.modules["cli_model"].Model


# -- fit -------------------------------------------------------------------------------------------------------------------


def test_fit_with_the_yaml_of_the_design(folder: Path) -> None:
    assert main(["fit", *both(write(DESIGN))]) == 0
    trained = model().last
    assert model().trained == 2
    for name, p in trained.named_parameters():
        assert torch.equal(p, trained.start[name]) == name.endswith("bias"), name
    run = read_run(folder / "run")
    assert run.scalars["watch/grad_norm/encoder.0.weight"][0].tolist() == [0, 1]
    assert {tag for tag in run.scalars if tag.endswith("/encoder.1")} == {
        f"watch/{tensor}_{stat}/encoder.1" for tensor in ("output", "output_grad") for stat in ("mean", "std", "zero_fraction")
    }
    assert {"watch/transform_acted/0_Zero", "watch/transform_acted/1_ClipByGlobalNorm"} <= set(run.scalars)
    assert (folder / "run" / "config.yaml").is_file()


def test_fit_with_short_names(folder: Path) -> None:
    assert main(["fit", *both(write(SHORT))]) == 0
    run = read_run(folder / "run")
    before, after = (run.scalars[f"watch/transform_norm_{when}/1_Scale"][1] for when in ("before", "after"))
    assert after == pytest.approx(before / 2)


def test_callbacks_from_the_command_line(folder: Path) -> None:
    arguments = ["--trainer.callbacks+=StatsMonitor", "--trainer.callbacks.every_n_steps=2", "--trainer.callbacks.prefix=cli/"]
    assert main(["fit", *both(write(SHORT)), *arguments]) == 0
    scalars = read_run(folder / "run").scalars
    assert scalars["watch/grad_norm/head.weight"][0].tolist() == [0, 1]
    assert scalars["cli/grad_norm/head.weight"][0].tolist() == [1]
    assert "watch/transform_acted/1_Scale" in scalars


CONSUMERS = """
trainer:
  callbacks:
    - class_path: lightning_hooks.StatsMonitor
      init_args:
        consumers: [{class_path: cli_model.Words}, {class_path: cli_model.Words, init_args: {word: also}}]
"""


@pytest.mark.parametrize("plain", [False, True], ids=["lightning-hooks", "LightningCLI"])
def test_consumers_from_a_config(folder: Path, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = both(write(CONSUMERS))
    monkeypatch.syspath_prepend(folder)
    if plain:
        monkeypatch.setattr(sys, "argv", ["train.py"])  # LightningCLI warns where there are arguments in both places
        cli = LightningCLI(run=False, args=arguments, save_config_callback=None)
        cli.trainer.fit(cli.model, cli.datamodule)
    else:
        assert main(["fit", *arguments]) == 0
    assert sys.modules["cli_model"].Words.said == ["step 0", "also 0", "step 1", "also 1"]


MADE = """
from lightning_hooks import StatsMonitor, StepConsumer
from lightning_hooks.transforms import Transform

made = []


class Consumer(StepConsumer):
    def __init__(self, word: str = "step") -> None:
        made.append("consumer")

    def consume(self, view):
        pass


class Doubles(Transform):
    def __init__(self, factor: float = 2.0) -> None:
        made.append("transform")

    def __call__(self, tensors, context):
        return [2.0 * tensor for tensor in tensors]


class Monitor(StatsMonitor):
    def __init__(self, prefix: str = "") -> None:
        super().__init__(prefix=prefix)
        made.append("callback")
"""
MAKES = """
trainer:
  callbacks:
    - {class_path: StatsMonitor, init_args: {consumers: [{class_path: cli_made.Consumer, init_args: {word: a}}]}}
    - {class_path: GradientTransforms, init_args: {apply: [{params: "*", transform: {class_path: cli_made.Doubles}}]}}
    - {class_path: cli_made.Monitor, init_args: {prefix: mine/}}
"""


@pytest.mark.parametrize(("command", "times"), [(["fit"], 1), (["match"], 1), (["fit", "--print_config"], 0)])
def test_objects_of_a_config_are_constructed_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], times: int
) -> None:
    Path("cli_made.py").write_text(MADE)
    monkeypatch.delitem(sys.modules, "cli_made", raising=False)
    arguments = [command[0], *both(write(MAKES)), *command[1:]]
    if times:
        assert main(arguments) == 0
    else:
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    assert sorted(sys.modules.pop("cli_made").made) == ["callback", "consumer", "transform"] * times


def test_a_wrong_rule_is_named_before_the_model_is_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "fit", *both(write(SHORT.replace("stats: [norm]", "stats: [nrom]"))))
    assert "watch[0].stats[0]: unknown statistic 'nrom'" in said and model().last is None


def test_print_config_goes_round(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fit", *both(write(DESIGN)), "--print_config"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    write(printed, "printed.yaml")
    assert main(["match", *both("hooks.yaml")]) == 0
    direct = capsys.readouterr().out
    assert main(["match", "--config", "printed.yaml"]) == 0
    assert capsys.readouterr().out == direct
    assert main(["fit", "--config", "printed.yaml"]) == 0
    assert main(["match", "--config", "run/config.yaml"]) == 0
    assert direct in capsys.readouterr().out


def test_print_config_goes_round_with_functions_by_path(folder: Path) -> None:
    """In a process of its own: jsonargparse tries other types where its warning of a wrong one is an error, as here."""
    schedules = [
        "{class_path: lightning_hooks.transforms.ScaleBySchedule, init_args: {call: statistics.mean}}",
        "{class_path: lightning_hooks.transforms.ReverseGradient, init_args: {weight: statistics.mean}}",
    ]
    rules = f"[{{params: '*', transform: [{', '.join(schedules)}]}}]"
    write(f"trainer: {{callbacks: [{{class_path: lightning_hooks.GradientTransforms, init_args: {{apply: {rules}}}}}]}}")
    arguments = ["-c", "from lightning_hooks.cli.main import main; main()", "fit", *both("hooks.yaml"), "--print_config"]
    done = forked.run(arguments, cwd=folder)
    assert "call: statistics.mean\n" in done.stdout and "weight: statistics.mean\n" in done.stdout, done.stderr


def test_the_console_script(folder: Path) -> None:
    script = Path(sys.executable).with_name("lightning-hooks")
    done = subprocess.run(
        [script, "fit", *both(write(DESIGN))],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "reached" in done.stderr + done.stdout
    assert len(read_run(folder / "run").scalars["watch/run/grad_norm"][0]) == 2


# -- match -----------------------------------------------------------------------------------------------------------------


HEALTH = """
trainer:
  callbacks:
    - {class_path: StatsMonitor}
    - {class_path: HealthMonitor, init_args: {rules: {DeadUnits: {patience: 3}}, actions: {critical: [warn, stop]}}}
"""


def test_a_match_shows_what_a_health_monitor_adds_to_the_monitor_beside_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["match", *both(write(HEALTH))]) == 0
    out = capsys.readouterr().out
    assert "dead_units" in out and out.rstrip().endswith("HealthMonitor\nmatches nothing of its own")


def test_match_prints_what_each_rule_matches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", *both(write(DESIGN))]) == 0
    lines = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["rule", "name", "type", "shape", "tensors", "statistics", "tags", "bytes/1k steps", "note"]
    by_name = {(line[0], line[1]): line[2:] for line in lines if len(line) > 3}
    assert by_name[("watch[0]", "encoder.1")][:4] == ["ReLU", "output, output_grad", "mean, std, zero_fraction", "6"]
    assert by_name[("watch[1]", "encoder.0.weight")][:5] == ["Parameter", "3×4", "param, grad, update", "norm", "3"]
    assert by_name[("apply[0]", "head.bias")][:4] == ["Parameter", "1", "grad (step)", "Zero(index=None, dim=1)"]
    assert by_name[("apply[1]", "encoder.0.weight")][3] == "ClipByGlobalNorm(max_norm=1.0, norm_type=2.0)"
    assert ("watch[0]", "head") not in by_name
    assert re.search(
        r"^9 matches, 8 tags, about 0\.\d MB on disk per 1,000 logged steps$", "\n".join(map("  ".join, lines)), re.M
    )
    assert model().trained == 0
    assert not (folder / "run").exists()


def test_match_knows_short_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", *both(write(SHORT))]) == 0
    out = capsys.readouterr().out
    assert "StatsMonitor\n" in out and "GradientTransforms\n" in out and "Scale(factor=0.5)" in out


def test_match_sees_layers_that_configure_model_makes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", *both(write(DESIGN)), "--model.lazily=true"]) == 0
    assert "encoder.0.weight" in capsys.readouterr().out


def test_match_without_a_callback_of_ours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", *both()]) == 0
    assert capsys.readouterr().out == "the config has no callback of lightning_hooks\n"


# How many buckets a histogram fills is only known from the values. What a file has once is a fifth of this one with few charts.
@pytest.mark.parametrize(
    ("watch", "within"), [("null", 0.35), ("[{params: '*', stats: [histogram]}]", 0.5)], ids=["scalars", "histograms"]
)
def test_the_bytes_are_those_of_a_run(folder: Path, capsys: pytest.CaptureFixture[str], watch: str, within: float) -> None:
    options = f"{{histogram_every_n_steps: 5, watch: {watch}}}"
    write(f"trainer: {{callbacks: [{{class_path: StatsMonitor, init_args: {options}}}]}}")
    assert main(["match", *both("hooks.yaml")]) == 0
    (claimed,) = re.findall(r"about ([\d.]+) MB", capsys.readouterr().out)
    assert main(["fit", *both("hooks.yaml"), "--trainer.limit_train_batches=200"]) == 0
    (file,) = (folder / "run").glob("*tfevents*")
    assert float(claimed) == pytest.approx(file.stat().st_size * 5 / 1e6, rel=within)


# -- errors ----------------------------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> str:
    """The message of a command that must end at once: code 2, few lines, no traceback."""
    capsys.readouterr()
    assert main([command, *arguments]) == 2
    text = capsys.readouterr().err
    lines = [line for line in text.splitlines() if line.startswith("lightning-hooks: ")]
    assert len(lines) == 1, text
    tail = text[text.index(lines[0]) :]
    assert len(tail.splitlines()) < 5
    assert "Traceback" not in text
    if "cli_model" in sys.modules:
        assert model().trained == 0
    return lines[0].removeprefix("lightning-hooks: ")


@pytest.mark.parametrize("command", ["fit", "match"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "stats: [mean,",
            "stats: [maen,",
            "error: hooks.yaml: trainer.callbacks[0]: StatsMonitor: watch[0].stats[0]: unknown statistic 'maen'",
        ),
        (
            "[output, output_grad]",
            "[ouput]",
            "error: hooks.yaml: trainer.callbacks[0]: StatsMonitor: watch[0].tensors: unknown tensor 'ouput'",
        ),
        (
            "lightning_hooks.transforms.Zero",
            "lightning_hooks.transforms.Zeo",
            "error: hooks.yaml: trainer.callbacks[1]: GradientTransforms: apply[0].transform: unknown transform "
            "'lightning_hooks.transforms.Zeo' (did you mean 'Zero'",
        ),
        (
            "max_norm: 1.0",
            "max_norm: 0.0",
            "error: hooks.yaml: trainer.callbacks[1]: GradientTransforms: apply[1].transform: "
            "ClipByGlobalNorm.max_norm must be a finite number above 0, got 0.0",
        ),
        (
            "lightning_hooks.StatsMonitor",
            "lightning_hooks.StatMonitor",
            "error: hooks.yaml: trainer.callbacks[0]: 'lightning_hooks.StatMonitor' is not a callback of lightning_hooks (did",
        ),
        (
            '"encoder.*"',
            '"encodr.*"',
            "error: watch[0].modules: 'encodr.*' matches nothing; the nearest names are 'encoder.2', 'encoder.1', 'encoder.0'.",
        ),
        (
            '"*.bias"',
            '"*.bais"',
            "error: apply[0].params: '*.bais' matches nothing; "
            "the nearest names are 'head.bias', 'encoder.2.bias', 'encoder.0.bias'.",
        ),
    ],
)
def test_a_wrong_rule_ends_with_a_short_message(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, old: str, new: str, message: str
) -> None:
    assert DESIGN.count(old) == 1
    write(DESIGN.replace(old, new))
    if not message:  # nothing wrong, so that the list above is known to test what it means to
        assert main(["match", *both("hooks.yaml")]) == 0
        return
    assert message in refused(capsys, command, *both("hooks.yaml"))


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            "{class_path: StatsMonitor, init_args: {watch: {modules: '*'}}}",
            "StatsMonitor: watch must be a list in a config of the command line: begin each item with '- ', got {",
        ),
        (
            "{class_path: CustomHooks, init_args: {hooks: {call: builtins.print, kind: forward, modules: '*'}}}",
            "CustomHooks: hooks must be a list in a config of the command line",
        ),
        ("{class_path: StatsMonitor, init_args: }", "StatsMonitor: init_args holds nothing: omit it, or give options in it"),
    ],
)
def test_what_only_the_command_line_does_not_take_ends_with_a_short_message(
    folder: Path, capsys: pytest.CaptureFixture[str], callback: str, message: str
) -> None:
    """From the environment variable they are valid."""
    Path("odd.yaml").write_text(f"trainer: {{callbacks: [{callback}]}}")
    assert load_callbacks("odd.yaml", where="here")
    assert f"error: odd.yaml: trainer.callbacks[0]: {message}" in refused(capsys, "match", *both("odd.yaml"))


def test_equals_sign_and_appended_lists_are_checked_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("trainer: {callbacks+: [{class_path: StatsMonitor, init_args: {watch: [{params: '*', stats: nrom}]}}]}")
    said = refused(capsys, "fit", "--config=base.yaml", "--config=hooks.yaml")
    assert said.startswith(
        "error: hooks.yaml: trainer.callbacks+[0]: StatsMonitor: watch[0].stats[0]: unknown statistic 'nrom'"
    )


@pytest.mark.parametrize("beside", ["", "trainer: {callbacks: [lightning_hooks.StatsMonitor]}\n"])
@pytest.mark.parametrize("command", ["fit", "match"])
def test_a_file_for_the_environment_variable_is_told_apart(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, beside: str
) -> None:
    said = refused(capsys, command, *both(write(f"callbacks: [lightning_hooks.StatsMonitor]\n{beside}")))
    assert said.startswith("error: hooks.yaml has 'callbacks' at its top, as a file for LIGHTNING_HOOKS_CONFIG=FILE ")
    assert said.endswith("line needs a config of LightningCLI, with 'model' and 'trainer: callbacks'")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "a0: &a0 [x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
            "is not valid YAML (with its aliases written out it has more than 1,000,000 characters",
        ),
        ("trainer: " + "[" * 20_000, "is not valid YAML (it is nested too deep)"),
        (
            "trainer: {callbacks: [{class_path: StatsMonitor, init_args: {watch: [{params: 're:a{1,99999999999}'}]}}]}",
            "trainer.callbacks[0]: StatsMonitor: watch[0].params: 're:a{1,99999999999}' is not a valid regular expression",
        ),
    ],
    ids=["bomb", "deep", "repetition"],
)
def test_whatever_a_config_holds_the_message_is_short(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    said = refused(capsys, "match", *both(write(content)))
    assert said.startswith("error: hooks.yaml") and message in said and len(said) < 1000


def test_what_is_no_yaml(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "match", *both(write("trainer: {callbacks: [\n")))
    assert said.startswith("error: hooks.yaml is not valid YAML (while parsing a flow node expected the node content")


@pytest.mark.parametrize("command", ["fit", "match"])
@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ("{class_path: StatsMonitor}, {class_path: StatsMonitor}", "prefix: two StatsMonitors would write "),
        (
            "{class_path: GradientTransforms, init_args: {apply: [{params: '*', transform: {class_path: Sign}}]}}, "
            "{class_path: StatsMonitor, init_args: {watch: [{params: '*', tensors: grad, stats: micro_cosine}]}}",
            "watch: 'micro_cosine' compares the gradient of the step with those of its micro-batches, and a transform of",
        ),
    ],
    ids=["tags", "sums"],
)
def test_what_only_callbacks_together_do_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, callbacks: str, message: str
) -> None:
    write(f"trainer: {{callbacks: [{callbacks}]}}")
    said = refused(capsys, command, *both("hooks.yaml"))
    assert said.startswith(f"error: {message}")


@pytest.mark.parametrize("command", ["fit", "match"])
def test_what_a_loss_scaler_does_not_allow(folder: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    write(
        "trainer:\n"
        "  plugins: {class_path: lightning.pytorch.plugins.MixedPrecision, init_args: {precision: 16-mixed, device: cpu}}\n"
        "  callbacks:\n"
        "  - {class_path: GradientTransforms, init_args: {apply: [{modules: head, transform: {class_path: ZeroNonFinite}}]}}\n"
    )
    said = refused(capsys, command, *both("hooks.yaml"))
    assert said.startswith("error: apply[0].transform: ZeroNonFinite in backward would hide the overflow")


def test_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    usage = capsys.readouterr().out
    assert usage.startswith("usage: lightning-hooks COMMAND [options]")
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == usage


def test_a_missing_config_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.yaml" in refused(capsys, "match", "--config", "nowhere.yaml")


def test_the_callbacks_in_a_config_are_ours(folder: Path) -> None:
    # A short name could be somebody else's.
    assert main(["match", *both(write(SHORT))]) == 0
    assert {StatsMonitor.__module__, GradientTransforms.__module__} == {
        "lightning_hooks.callbacks.monitor",
        "lightning_hooks.callbacks.transforms",
    }


def test_info_names_the_versions_and_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    facts = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    libraries = ["torch", "lightning", "pytorch-lightning", "torchmetrics", "tensorboard", "numpy", "triton"]
    parts = ["CPU kernel", "CUDA kernel", "hooks", "tensor hooks", "event files", "private names"]
    assert list(facts) == ["lightning_hooks", "python", *libraries, *parts]
    assert facts["torch"] == importlib.metadata.version("torch")
    assert facts["CPU kernel"] == kernels.in_use()
    assert facts["CPU kernel"].split()[0] in ("native", "numpy")
    assert facts["CUDA kernel"] == kernels.in_use_on_cuda()
    assert facts["hooks"] == str(backends.hooks())
    assert facts["tensor hooks"] == str(backends.tensor_hooks())
    assert facts["event files"] == str(backends.events())
    with pytest.raises(SystemExit, match="2"):
        main(["info", "--all"])
    assert "unrecognized arguments: --all" in capsys.readouterr().err


def test_info_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["info", "--help"])
    assert "Print the versions of the dependencies and the kernels in use" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"lightning-hooks {importlib.metadata.version('lightning-hooks')}\n"


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("command", ["fit", "match"])
def test_the_help_is_what_this_package_adds(capsys: pytest.CaptureFixture[str], command: str, option: str) -> None:
    assert main([command, option]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: lightning-hooks {command} --config FILE") and len(out.splitlines()) < 40
    assert max(map(len, out.splitlines())) <= 120
    for name in ("HealthMonitor", "StatsMonitor", "ClipByGlobalNorm", "--help-all"):
        assert f" {name}" in out
    assert "--trainer.accelerator" not in out


def test_help_all_lists_the_options_of_the_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["match", "--help-all"])
    assert "--trainer.accelerator ACCELERATOR" in capsys.readouterr().out


def test_a_wrong_option_is_named_without_the_usage_of_the_trainer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "fit", *both(), "--trainer.epochs=3")
    assert "--trainer.epochs" in said and said.endswith("; `lightning-hooks fit --help` lists the options")


def test_match_without_anything_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "match")
    assert said.startswith("error: match needs --config FILE or a module; `lightning-hooks match --help`")


def test_info_says_why_nothing_compiled_serves() -> None:
    env = {**os.environ, backends.VARIABLE: "reference"}
    done = forked.run(["-c", "from lightning_hooks.cli.main import main; main(['info'])"], env)
    for device, name in (("CPU", "torch"), ("CUDA", "reference")):
        assert f"{device + ' kernel':<18}{name} (LIGHTNING_HOOKS_KERNEL=reference)" in done.stdout, done.stderr
    for part, name in (("hooks", "python"), ("event files", "tensorboard")):
        assert f"{part:<18}{name} (LIGHTNING_HOOKS_KERNEL=reference)" in done.stdout, done.stderr


def test_without_jsonargparse_the_extra_is_named(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["match", *both(write(DESIGN))]) == 2
    assert "the command line needs jsonargparse: pip install 'lightning-hooks[cli]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["view", "report", "diff"])
def test_a_path_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    path = str(tmp_path / ("x" * 300))
    assert main([command, path, *([path] if command == "diff" else [])]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lightning-hooks: error: {path}: ") and len(said.splitlines()) == 1
