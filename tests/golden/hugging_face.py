"""The training of the set-up `hugging_face`: the Trainer of `transformers` with a network of torch alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tests.golden.models import batches, net
from tests.golden.observing import count_hooks

os.environ["HF_HUB_OFFLINE"] = "1"


class WithLoss(nn.Module):
    """Returns its loss, as the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.calls = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        guess = self.net(x)
        count_hooks(self, f"batch {self.calls}")
        self.calls += 1
        return {"loss": (guess - labels).square().mean(), "logits": guess}


def train(folder: Path, callback: Any) -> None:
    """Train for eight steps of two batches each."""
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=8,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    data = [{"x": x, "labels": y} for xs, ys in batches(16) for x, y in zip(xs, ys, strict=True)]
    transformers.Trainer(WithLoss(), arguments, train_dataset=data, callbacks=[callback]).train()
