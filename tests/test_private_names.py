"""Private names of torch, Lightning and TensorBoard: training works without them, and docs/support.md lists them."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks import private
from tests import forked

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "lightning_hooks").rglob("*.py"))


def listed() -> list[str]:
    """The first cell of each row of the table in docs/support.md."""
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    table = page.partition("| private name |")[2]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")]


def looked_up_names() -> Iterator[str]:
    """The names in calls of `private`, `tried` and `attribute` in the sources."""
    for file in SOURCES:
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            position = {"private": 0, "tried": 0, "attribute": 1}.get(getattr(getattr(call, "func", None), "id", ""))
            if position is not None and isinstance(call.args[position], ast.Constant):
                yield call.args[position].value


def foreign_private_names() -> set[str]:
    """The private attributes of torch's modules and of the classes of torch, Lightning and TensorBoard in the sources."""
    holders = [nn.Module(), torch.ones(1), torch.optim.SGD([torch.ones(1)]), torch.amp.GradScaler("cpu"), torch, torch._C]
    loops = Trainer(logger=False, accelerator="cpu", enable_checkpointing=False, enable_progress_bar=False)
    holders += [loops, loops.fit_loop, loops.fit_loop.epoch_loop, loops.predict_loop, SummaryWriter]
    return {name for holder in holders for name in dir(holder) if re.fullmatch(r"_[a-z]\w*[a-z]_?", name)}


def test_every_private_name_is_listed_and_every_listed_one_is_tried() -> None:
    cells = " ".join(listed())
    names = set(looked_up_names())
    assert len(names) > 15
    for name in names:
        for single_name in name.split(", "):
            assert f"`{single_name}`" in cells, f"{single_name} is not in the table of docs/support.md"
    for name in re.findall(r"`([^`]+)`", cells):
        assert any(name in looked_up for looked_up in names) or name in LISTED_WITH_ANOTHER, f"nothing tries {name}"


ON_CUDA_ONLY = {
    "CompiledKernel.run, function, packed_metadata",
    "CompiledKernel.asm, metadata",
    "cuLaunchKernel, current_work_stream",
    "torch._C._cuda_getCurrentRawStream",
}
LISTED_WITH_ANOTHER = {
    "Tensor._backward_hooks": "Node._register_hook_dict",
    "reset_code": "torch._dynamo.convert_frame.input_codes",
    "_debug_get_cache_entry_list": "torch._dynamo.convert_frame.input_codes",
    "_torchdynamo_orig_callable": "torch._dynamo.convert_frame.input_codes",
    "_compiler_ctx": "Module._compiled_call_impl",
    "Module._modules": "used as it is: every state_dict follows it",
}


def test_no_other_private_attribute_of_torch_or_lightning_is_used() -> None:
    cells, private_names = " ".join(listed()), foreign_private_names()
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                is_listed = node.attr in cells or node.attr.startswith("_foreach_")
                assert node.attr not in private_names or is_listed, f"{file}:{node.lineno}: {node.attr}"


def test_training_without_private_names_is_bit_identical_and_says_what_is_lost(tmp_path: Path) -> None:
    environment = {**os.environ, private.VARIABLE: "off", "OMP_NUM_THREADS": "1"}
    done = forked.run(["-m", "tests._without_private_names", str(tmp_path)], environment, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for name, fit in report["fits"].items():
        assert fit["same"] and fit["tags"] > 50, name
    assert set(report["lost"]) == set(looked_up_names()) - ON_CUDA_ONLY
    assert all(report["lost"].values())


def test_a_name_that_does_something_else_has_its_fallback(caplog: pytest.LogCaptureFixture) -> None:
    def find() -> str:
        raise RuntimeError("it does something else")

    with caplog.at_level("INFO", "lightning_hooks"):
        for _ in range(2):
            assert private.private("test._name", find, "public", "nothing") == "public"
        assert private.attribute(object(), "object._number", int, "the number") is None
    assert [record.message for record in caplog.records] == [
        "lightning_hooks does without test._name (RuntimeError: it does something else): nothing",
        "lightning_hooks does without object._number (AttributeError: object has no such attribute of type int): the number",
    ]


def test_a_newer_torch_is_noted_once_and_used(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "lightning_hooks"):
        for version in ("2.10.0", "2.13.0+cpu", "99.1.0", "99.1.0"):
            private.note_newer_torch(version)
    (record,) = caplog.records
    assert record.levelname == "INFO" and "torch 99.1.0 is newer than 2.15" in record.message
