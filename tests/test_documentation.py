"""docs/ and website/: every block of Python runs, every block of YAML can be loaded, and every link has a target.

`tests/pages/` has the tests of README.md, SKILL.md and the cookbook.
"""

import doctest
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from lightning_hooks import Apply, StatsMonitor, StepConsumer
from lightning_hooks.callbacks._config import load_callbacks
from lightning_hooks.cli.runs import RUN_COMMANDS
from lightning_hooks.rules.reading import as_rules

ROOT = Path(__file__).parent.parent
FILES = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("website/*.md"))]
LINKED = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("website/*.md"),
    ROOT / "llms.txt",
    ROOT / "benchmarks" / "RESULTS.md",
]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}


def blocks(language):
    """The page and the text of each block of a language, as parameters of a test."""
    found = ((page, re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)) for page, text in PAGES.items())
    return [pytest.param(page, block, id=f"{page}-{i}") for page, each in found for i, block in enumerate(each)]


class Model(LightningModule):
    """The `model` in the blocks of the pages: [N, 3, 4] -> [N, 3, 4]."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.encoder(x)


class Loudest(StepConsumer):
    def consume(self, view):
        pass


@pytest.fixture
def given(tmp_path, monkeypatch):
    """The names that blocks use without defining them (`model`, `loader`, `my_project` …), in an empty folder."""
    monkeypatch.chdir(tmp_path)
    project, hooks = types.ModuleType("my_project"), types.ModuleType("my_project.hooks")
    project.Loudest, project.hooks = Loudest, hooks
    hooks.clamp_gradient = hooks.soften = lambda tensor: tensor.clamp(-1, 1)
    monkeypatch.setitem(sys.modules, "my_project", project)
    monkeypatch.setitem(sys.modules, "my_project.hooks", hooks)
    model, batch = Model(), torch.ones(2, 3, 4)
    return {
        "__name__": __name__,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "batches": [(batch, batch)],
        "loader": torch.utils.data.DataLoader([batch[0]], 1),
        "loss_fn": nn.functional.mse_loss,
    }


# Ignore the warnings of Lightning about missing checkpoints and few workers.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("page", "block"), blocks("python"))
def test_python(page, block, given):
    if block.startswith(">>>"):
        assert doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(block, {}, page, page, 0)).failed == 0
        return
    if "runs/digits" in block:
        logger = TensorBoardLogger("runs", name="digits", version="")
        trainer = Trainer(max_steps=2, limit_val_batches=0, accelerator="cpu", logger=logger, callbacks=[StatsMonitor()])
        trainer.fit(BoringModel())
    exec(compile(block, page, "exec"), given)


@pytest.mark.parametrize(("page", "block"), blocks("yaml"))
def test_yaml(page, block, given):
    content = yaml.safe_load(block)
    if "jobs" in content:
        # A workflow of GitHub: its commands of this package must exist.
        run = [step.get("run", "") for job in content["jobs"].values() for step in job["steps"]]
        commands = {found for text in run for found in re.findall(r"^lightning-hooks (\w+)", text, re.MULTILINE)}
        assert commands and commands <= set(RUN_COMMANDS)
        return
    if isinstance(content, list) and "class_path" not in content[0]:
        assert as_rules(Apply, content, page)
        return
    if "jobs" in content:  # a workflow of GitHub
        assert all({"uses", "run"} & step.keys() for job in content["jobs"].values() for step in job["steps"])
        return
    Path("given.yaml").write_text(yaml.safe_dump([content] if "class_path" in content else content), encoding="utf-8")
    assert load_callbacks("given.yaml", page)


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in LINKED))
def test_links(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link
