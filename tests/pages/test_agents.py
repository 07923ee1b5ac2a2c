"""SKILL.md and llms.txt: each command runs, and its answer holds the words that the line quotes."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor
from tests.pages.package import Data, Model
from tests.pages.page import ROOT, blocks
from tests.pages.player import command

SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
PLACES = {
    "RECORD": "lost/flight_record",
    "LOST": "lost",
    "GOOD": "runs/good",
    "RUNS": "runs",
    "RUN": "runs/sick",
    "A": "runs/good",
    "B": "runs/sick",
}
"""What stands for the words in capitals of the commands."""


def answers() -> list[tuple[str, str]]:
    """The command and the last cell of each row of the table of symptoms."""
    rows = [line.strip("| ").split(" | ") for line in SKILL.partition("## 2. Ask")[2].splitlines() if line.startswith("| ")]
    asked = [(cells[0], cells[1].strip("`"), cells[2]) for cells in rows if cells[1].startswith("`")]
    return [(line.replace("RUN", "LOST") if symptom.startswith("NaN") else line, reading) for symptom, line, reading in asked]


def train(name: str, folder: Path, model: Model) -> None:
    """Train for two epochs and write the run into the folder `name`."""
    where = folder / name
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=TensorBoardLogger(where.parent, where.name, ""),
        callbacks=[StatsMonitor(), HealthMonitor(), FlightRecorder(weights=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, Data())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a good run, a sick one, one with a flight record, a config, and the code of the model."""
    folder = tmp_path_factory.mktemp("agent")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_everything(0, verbose=False)
        train("runs/good", folder, Model())
        seed_everything(0, verbose=False)
        train("runs/sick", folder, Model(forgets=True))
        train("lost", folder, Model(zero_from=30))
    shutil.copy(Path(__file__).with_name("package.py"), folder)
    (script,) = [block.text for block in blocks(SKILL) if block.language == "python"]
    (folder / "last_values.py").write_text(script, encoding="utf-8")
    config = {
        "model": {"class_path": "package.Model", "init_args": {"forgets": True}},
        "data": {"class_path": "package.Data"},
        "trainer": {"accelerator": "cpu", "max_epochs": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    yield folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("line", "reading"), answers(), ids=[line for line, _ in answers()])
def test_a_command_answers_as_its_line_says(
    line: str, reading: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    name = line.split()[1]
    if line.startswith("lightning-hooks "):
        command("lightning-hooks --help")
        if not re.search(rf"^  {name} ", capsys.readouterr().out, re.MULTILINE):
            pytest.skip(f"this version has no command {name}")
    code = command(re.sub(r"\b[A-Z]+\b", lambda word: PLACES.get(word[0], word[0]), line))
    said = capsys.readouterr().out
    assert said.strip()
    optional = ("Or", "WARN", "SKIP", "no problem", "equal to the last bit")
    assert [each for each in re.findall(r'"([^"]+)"', reading) if each not in said and each not in optional] == []
    told = re.search(r"Exit code (\d)", reading)
    assert code == (int(told[1]) if told else 1 if " doctor " in line else 0)


def test_the_diagnosis_names_the_fault_that_was_planted(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    command("lightning-hooks doctor runs/sick")
    assert "ParametersForgotten (certain)" in capsys.readouterr().out
    command("lightning-hooks doctor lost")
    assert "NonFinite" in capsys.readouterr().out
    command("lightning-hooks diff runs/good runs/good")
    assert "equal to the last bit" in capsys.readouterr().out


def test_the_skill_has_the_head_that_agents_read() -> None:
    _, head, _ = SKILL.split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields.keys() == {"name", "description"}
    assert re.fullmatch(r"[a-z-]{1,64}", fields["name"]) and len(fields["description"]) <= 1024


def test_llms_txt_names_every_page_of_the_documentation_that_people_write() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# lightning_hooks\n\n> ")
    written = {"clients", "reports", "trainings", "versions", "wheels"}  # by scripts, or of releases
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - written
    assert [page for page in sorted(pages) if f"(docs/{page}.md)" not in text] == []
