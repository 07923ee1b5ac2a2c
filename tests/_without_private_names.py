"""Run by tests/test_private_names.py where private names are treated as absent: prints what each fit did, as JSON."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim.lr_scheduler import SequentialLR, StepLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch, assert_no_hooks, check, read_run
from lightning_hooks.engine.lookouts.schedule_shape import factor_of, made_for
from lightning_hooks.engine.recording.autopsy import autopsy
from lightning_hooks.engine.recording.restoring import restored
from lightning_hooks.private import LOST
from lightning_hooks.transforms import EMA, ClipByGlobalNorm, ClipByNorm


class Model(LightningModule):
    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fused = fused
        self.first, self.inner, self.last = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 1)
        self.drop = nn.Dropout(0.2)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        hidden = checkpoint(self.inner, self.first(batch), use_reentrant=False)
        return self.last(self.drop(hidden) + self.drop(hidden)).float().square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, fused=self.fused)


def compiled(model: Model) -> Model:
    model.inner = torch.compile(model.inner, backend="eager")
    return model


def weights_of(model: Model, folder: Path, callbacks: list[Any], **options: Any) -> list[Tensor]:
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        callbacks=callbacks,
        logger=TensorBoardLogger(folder, name="run", version=""),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    torch.manual_seed(1)
    trainer.fit(
        model, DataLoader([torch.randn(4, generator=torch.Generator().manual_seed(i)) for i in range(20)], batch_size=4)
    )
    assert_no_hooks(model)
    return [parameter.detach().clone() for parameter in model.parameters()]


def callbacks() -> list[Any]:
    watch = [
        Watch(modules="*", tensors=["input", "output", "input_grad", "output_grad"], stats=["norm", "std"]),
        Watch(params="*", tensors=["param", "grad", "update"], stats=["norm"]),
    ]
    apply = [
        Apply(EMA(weight=0.0), params="*"),
        Apply(ClipByGlobalNorm(1e9), params="*"),
        Apply(ClipByNorm(1e9), modules="last", tensor="output_grad"),  # not ours to change in place
    ]
    return [GradientTransforms(apply), StatsMonitor(watch)]


def main(folder: Path) -> None:
    def scaler() -> dict[str, Any]:
        return {"plugins": MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))}

    cases: dict[str, tuple[Model, Any]] = {
        "accumulation": (Model(), lambda: {"accumulate_grad_batches": 2}),
        "scaler": (Model(), scaler),
        "compiled": (compiled(Model()), dict),
    }
    report = {}
    for name, (model, options) in cases.items():
        twin = copy.deepcopy(model)
        plain = weights_of(model, folder / name / "plain", [], **options())
        watched = weights_of(twin, folder / name / "watched", callbacks(), **options())
        run = read_run(folder / name / "watched" / "run")
        tags = run.scalars if hasattr(run, "scalars") else {}
        report[name] = {"same": all(map(torch.equal, plain, watched)), "tags": len(tags)}
    square_root = nn.Linear(1, 1)
    with restored(square_root):
        found = autopsy(square_root, lambda: square_root(torch.ones(1, 1)).mul(0).sqrt().sum().backward())
    assert found.verdict == "backward" and found.operation is not None and found.operation.name == "aten.div"
    checked = check(square_root, torch.rand(4, 1), step=lambda model, batch: model(batch).square().mean())
    assert checked.results
    optimizer = torch.optim.SGD(square_root.parameters(), lr=0.1)
    schedule = SequentialLR(optimizer, [StepLR(optimizer, 1), StepLR(optimizer, 1)], [2])
    assert made_for(schedule) is None and factor_of(schedule) is None
    print(json.dumps({"fits": report, "lost": dict(LOST)}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
