"""The configurations of the callbacks in configs/: each names every option, and trains."""

import inspect
import re
from pathlib import Path

import pytest
import yaml
from lightning.pytorch import Callback

import lightning_hooks
from lightning_hooks import Apply, Hook, Watch, load_capture, read_run
from lightning_hooks.cli.main import main
from lightning_hooks.rules import MODULE_KINDS, OPTIMIZER_KINDS, PARAM_KINDS
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.statistics import NAMES
from tests._configs import DIGITS, ROOT, fit
from tests._configs import folder as folder

CONFIGS = {  # callback, rules in it, further words that it must name
    "stats_monitor": ("StatsMonitor", Watch, (*NAMES, *PAIR_STATS)),
    "gradient_transforms": ("GradientTransforms", Apply, ()),
    "health_monitor": ("HealthMonitor", None, ("info", "warning", "critical")),
    "transforms/activations": ("ActivationTransforms", Apply, ()),
    "custom_hooks": ("CustomHooks", Hook, (*MODULE_KINDS, *PARAM_KINDS, *OPTIMIZER_KINDS)),
    "activation_capture": ("ActivationCapture", None, ()),
    "flight_recorder": ("FlightRecorder", None, ("nonfinite", "exception")),
}
NOT_FOR = {"GradientTransforms": {"stages"}, "ActivationTransforms": {"params", "when"}}

pytest.importorskip("sklearn")  # the digits


def options_of(called: object) -> set[str]:
    return set(inspect.signature(called).parameters)  # type: ignore[arg-type]


def test_there_is_one_for_each_callback() -> None:
    public = {name: getattr(lightning_hooks, name) for name in lightning_hooks.__all__}
    callbacks = {name for name, each in public.items() if isinstance(each, type) and issubclass(each, Callback)}
    assert callbacks == {callback for callback, _, _ in CONFIGS.values()}
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == {
        *(name for name in CONFIGS if "/" not in name),
        "digits",
        "char_gpt",
        "environment",
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_it_names_every_option(name: str) -> None:
    callback, rule, words = CONFIGS[name]
    text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    wanted = options_of(getattr(lightning_hooks, callback)) | (options_of(rule) if rule is not None else set())
    assert wanted - NOT_FOR.get(callback, set()) - set(re.findall(r"(\w+):", text)) == set()
    assert {word for word in words if not re.search(rf"\b{word}\b", text)} == set()
    assert f"--config configs/{name}.yaml" in text


@pytest.mark.parametrize("name", CONFIGS)
def test_it_trains(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / "configs" / f"{name}.yaml"
    assert main(["match", *DIGITS, "--config", str(config)]) == 0
    assert fit(config, steps=4) == 0
    run = read_run(folder / "runs" / "digits")
    written = [callback["class_path"] for callback in yaml.safe_load(config.read_text("utf-8"))["trainer"]["callbacks"]]
    if "lightning_hooks.StatsMonitor" in written:
        assert any(name.startswith("watch/grad_norm/") for name in run.scalars)
    if name == "custom_hooks":
        assert "features.conv1" in capsys.readouterr().out
    if name == "activation_capture":
        assert load_capture(folder / "runs" / "digits" / "captures")["features.pool"].steps == (1, 3)
