"""A run that resumes from a checkpoint ends with the weights of the run that never stopped, bit for bit."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms
from lightning_hooks.transforms import EMA, AutoClip, Scale, SkipStep, Transform, ZClip
from tests.callbacks._tiny import loader, make
from tests.transforms._catalogue import EXAMPLES, has, label
from tests.versions import reading

BATCHES = [(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)) * (1 + seed)).tolist() for seed in range(3)]
KEEPING = [t for t in EXAMPLES if t.random or has(t, EMA, AutoClip, ZClip, SkipStep)]


class Small(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        out: Tensor = self.head(self.body(batch).tanh()).square().mean()
        return out

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def weights(folder: Path, transform: Transform, epochs: int, resume: Path | None = None) -> tuple[Tensor, Path]:
    model, path = Small(), folder / f"{epochs}.ckpt"
    change = GradientTransforms([Apply([transform, Scale(0.9)], params="*")])
    trainer = make(folder, change, max_epochs=epochs)
    trainer.fit(model, loader(*BATCHES), ckpt_path=resume, **reading(True if resume else None))
    trainer.save_checkpoint(path)
    return nn.utils.parameters_to_vector(model.parameters()).detach(), path


@pytest.mark.parametrize("transform", KEEPING, ids=label)
def test_bit_identical_weights(tmp_path: Path, transform: Transform) -> None:
    # Random transforms use the seed of the process.
    torch.manual_seed(1)
    whole, _ = weights(tmp_path, transform, epochs=2)
    torch.manual_seed(1)
    half, checkpoint = weights(tmp_path, transform, epochs=1)
    assert not torch.equal(half, whole)
    # A resumed run continues with the seed of the checkpoint, not with this seed.
    torch.manual_seed(99)
    resumed, _ = weights(tmp_path, transform, epochs=2, resume=checkpoint)
    assert torch.equal(resumed, whole)
