"""A baseline holds what good runs tell in little room, and a file that is none or damaged gets a clear error."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from lightning_hooks import RuleError
from lightning_hooks.comparing.bands import BandLearner
from lightning_hooks.health.reference.baseline import read_baseline, to_json, write_baseline
from lightning_hooks.health.reference.learning import learn
from lightning_hooks.health.reference.reference import BAND_KEYS, Reference
from lightning_hooks.health.reference.sources import read_reference
from lightning_hooks.records.facts import ModuleFacts, ParameterFacts, Structure
from tests.health.reference.made import compare, reference_of, run_of, said


def test_what_is_read_is_what_was_written_up_to_rounding(tmp_path: Path) -> None:
    reference = reference_of(0, 1)
    size = write_baseline(reference, tmp_path / "baseline.json")
    read = read_baseline(tmp_path / "baseline.json")
    assert size == (tmp_path / "baseline.json").stat().st_size
    assert to_json(read)["runs"] == to_json(reference)["runs"] and read.structure == reference.structure
    assert read.traits["grad"] == reference.traits["grad"]
    for key, bands in reference.bands.items():
        assert read.bands[key].names == bands.names
        np.testing.assert_allclose(read.bands[key].low, bands.low, atol=1 / 512)
        assert (np.nan_to_num(read.bands[key].low, nan=-99) <= np.nan_to_num(bands.low, nan=-99)).all()
    assert to_json(read) == to_json(read_baseline(tmp_path / "baseline.json"))


def test_a_baseline_says_what_its_runs_say(tmp_path: Path) -> None:
    write_baseline(reference_of(0), tmp_path / "baseline.json")
    reference = read_baseline(tmp_path / "baseline.json")
    assert compare(reference, run_of(7)) == []
    findings = compare(reference, run_of(7, lambda step, t, n: 0.1 if (t, n) == ("grad", "two.weight") else 1.0))
    assert said(findings) == [("ReferenceNumbers", "two.weight", 0)]


def of_many_rows(rows: int, steps: int) -> Reference:
    """A reference whose rows have the statistics that they have by default, with noise that does not compress."""
    source = np.random.default_rng(0)
    per_tensor = rows // 4
    names = [f"model.encoder.layers.{i // 8}.attention.part{i % 8}" for i in range(per_tensor)]
    at = np.unique(np.geomspace(1, steps, 400).astype(np.int64))
    bands = {}
    for key in BAND_KEYS:
        if key[0] == "input":
            continue
        learner = BandLearner(key, names if key[0] != "loss" else ["loss"])
        learner.add(at, np.exp(source.standard_normal((len(at), len(learner.names)))))
        bands[key] = learner.bands()
    structure = Structure(
        tuple(ModuleFacts(name, "Linear", "linear") for name in names),
        tuple(ParameterFacts(f"{name}.weight", name, (512, 512), "float32") for name in names),
    )
    small = reference_of(0)
    return Reference(small.records, structure, bands, small.traits)


@pytest.mark.parametrize("steps", [1_000, 1_000_000])
def test_a_thousand_rows_take_at_most_a_megabyte(tmp_path: Path, steps: int) -> None:
    reference = of_many_rows(1_000, steps)
    assert reference.rows >= 1_000
    assert write_baseline(reference, tmp_path / "baseline.json") <= 1_000_000


BOMB = base64.b64encode(zlib.compress(bytes(50_000_000))).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.pop("format"), "baseline.json is not a baseline; `lightning-hooks baseline RUN -o baseline.json`"),
        (lambda saved: saved.update(version=9), "has version 9 of the format, but this package reads version 1"),
        (lambda saved: saved.pop("runs"), "baseline.json is damaged: KeyError: 'runs'"),
        (lambda saved: saved["bands"][0].update(low="!"), "baseline.json is damaged"),
        (lambda saved: saved["bands"][0].update(rows=[0, 1]), "baseline.json is damaged"),
        (
            lambda saved: saved["bands"][0].update(low=BOMB),
            "baseline.json is damaged: UnreadableError: its compressed part is larger",
        ),
        (
            lambda saved: saved["traits"]["grad"].update(present=[["yes", [0]]]),
            "traits['grad'].present[0][0] must be true or false, got 'yes'",
        ),
        (lambda saved: saved["runs"][0].update(observed=[[5, 1, 1]]), "runs[0].observed: ranges of steps must ascend"),
        (lambda saved: saved["runs"][0].pop("frozen"), "runs[0] has no 'frozen'"),
        (lambda saved: saved.update(runs=3), "runs must be a list, got 3"),
    ],
    ids=["format", "version", "missing", "packed", "rows", "bomb", "traits", "steps", "facts", "runs"],
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, change: object, message: str) -> None:
    saved = to_json(reference_of(0))
    change(saved)  # type: ignore[operator]
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(saved))
    with pytest.raises(RuleError) as caught:
        read_baseline(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(RuleError, match="is not a baseline"):
        read_baseline(tmp_path / "b.json")


def test_a_reference_that_is_missing_or_mixed_is_refused(tmp_path: Path) -> None:
    def none(path: Path):  # type: ignore[no-untyped-def]
        raise AssertionError(path)

    with pytest.raises(RuleError, match="there is no run .*nowhere"):
        read_reference(str(tmp_path / "nowhere"), none)
    with pytest.raises(RuleError, match=r"b.json is a baseline, which stands for all its runs; give it alone"):
        read_reference([tmp_path / "b.json", tmp_path], none)
    with pytest.raises(RuleError, match="b.json is not a baseline: .*does not exist"):
        read_reference(tmp_path / "b.json", none)
    for value in (3, [], [3]):
        with pytest.raises(RuleError, match="reference must be the folder of a good run, a list of folders"):
            read_reference(value, none)


def test_runs_of_another_model_or_of_few_steps_are_refused() -> None:
    with pytest.raises(RuleError, match="short has 5 watched steps; a good run needs at least 10"):
        learn([("short", run_of(0, steps=5))])
    other = Structure((), (ParameterFacts("x", "", (1,), "float32"),))
    with pytest.raises(RuleError, match="two trained another model than one: their parameters differ in name or shape"):
        learn([("one", run_of(0)), ("two", run_of(1, structure=other))])
