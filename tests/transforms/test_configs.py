"""Each configuration in configs/transforms, through the command line."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from lightning_hooks import read_run
from tests._configs import ROOT, fit
from tests._configs import folder as folder
from tests.transforms._catalogue import every_transform

FOLDER = ROOT / "configs" / "transforms"
DOCUMENTED = (
    (ROOT / "docs" / "transforms.md").read_text(encoding="utf-8").partition("## The transforms")[2].partition("\n## ")[0]
)
FAMILIES = {
    title.strip().lower().replace(" ", "_"): set(re.findall(r"^\| `(\w+)\(", table, flags=re.MULTILINE))
    for title, table in re.findall(r"### (.*)\n((?:(?!###).*\n?)*)", DOCUMENTED)
}
STEPS = 4

pytest.importorskip("sklearn")  # the digits


def named(rule: object) -> list[str]:
    """The names of the transforms of a rule in YAML, including nested transforms."""
    if isinstance(rule, dict):
        names = [rule["class_path"].rpartition(".")[2]] if "class_path" in rule else []
        return names + [name for value in rule.values() for name in named(value)]
    return [name for item in rule for name in named(item)] if isinstance(rule, list) else []


def rules_of(text: str) -> list[dict[str, object]]:
    (callback,) = [c for c in yaml.safe_load(text)["trainer"]["callbacks"] if c["class_path"].endswith("Transforms")]
    rules: list[dict[str, object]] = callback["init_args"]["apply"]
    return rules


def test_every_family_has_a_configuration() -> None:
    assert set.union(*FAMILIES.values()) == every_transform()
    assert {path.stem for path in FOLDER.iterdir()} == {*FAMILIES, "activations"}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_configuration_names_every_transform_of_its_family(family: str) -> None:
    text = (FOLDER / f"{family}.yaml").read_text(encoding="utf-8")
    # Mask needs a file, so the configuration has it in a comment.
    expected = FAMILIES[family] - {"Mask"}
    assert expected <= {name for rule in rules_of(text) for name in named(rule)}
    assert f"--config configs/transforms/{family}.yaml" in text


@pytest.mark.parametrize("family", [*sorted(FAMILIES), "activations"])
def test_a_configuration_runs(family: str, folder: Path) -> None:
    path = FOLDER / f"{family}.yaml"
    assert fit(path, STEPS) == 0
    check_reports(folder, path.read_text(encoding="utf-8"))


def test_the_mask_that_needs_a_file(folder: Path) -> None:
    text = (FOLDER / "noise_and_sparsity.yaml").read_text(encoding="utf-8")
    text, n_replaced = re.subn(r"# (- params: .*\n +)#   (transform: .*masks\.pt.*)", r"\1  \2", text)
    assert n_replaced == 1
    torch.save({"features.conv2.weight": torch.arange(32).reshape(32, 1, 1, 1) % 2 == 0}, "masks.pt")
    Path("masked.yaml").write_text(text, encoding="utf-8")
    assert fit(Path("masked.yaml"), STEPS) == 0
    check_reports(folder, text)


def check_reports(folder: Path, text: str) -> None:
    """Check that every transform of the chains has a reported norm for every step."""
    links = [transform for rule in rules_of(text) for transform in as_list(rule["transform"])]
    run = read_run(folder / "runs" / "digits")
    for index, transform in enumerate(links):
        kind = transform["class_path"].rpartition(".")[2]
        steps, values = run.scalars[f"watch/transform_norm_after/{index}_{kind}"]
        assert list(steps) == list(range(STEPS)) and torch.tensor(values).isfinite().all(), kind


def as_list(given: object) -> list[dict[str, str]]:
    return given if isinstance(given, list) else [given]  # type: ignore[list-item]
