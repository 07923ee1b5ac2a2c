"""A small convolutional classifier of scikit-learn's 1,797 handwritten digits, watched by two callbacks.

From Python: `python -m examples.digits`. From YAML: `lightning-hooks fit --config configs/digits.yaml`.
"""

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


class Features(nn.Module):
    """Two convolutions: [batch, 1, 8, 8] -> [batch, 2 * channels * 16]."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, kernel_size=3, padding=1)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1)
        self.act2 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.act1(self.conv1(images))
        hidden = self.pool(self.act2(self.conv2(hidden)))
        return self.dropout(hidden.flatten(1))


class DigitsClassifier(LightningModule):
    """Classifies 8x8 images of digits.

    Args:
        channels: channels of the first convolution; the second has twice as many.
        hidden: units of the hidden layer of the head.
        dropout: probability of dropping a feature.
        lr: learning rate of AdamW.
    """

    def __init__(self, channels: int = 16, hidden: int = 64, dropout: float = 0.1, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.features = Features(channels, dropout)
        self.head = nn.Sequential()
        self.head.add_module("fc1", nn.Linear(2 * channels * 16, hidden))
        self.head.add_module("act", nn.ReLU())
        self.head.add_module("fc2", nn.Linear(hidden, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.log("val_loss", F.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Digits(LightningDataModule):
    """The digits that come with scikit-learn: 1,437 images to train on, 360 to validate; pixels in [0, 1].

    Args:
        batch_size: images in a batch.
    """

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        dataset = TensorDataset(images, torch.tensor(digits.target))
        self.train, self.val = random_split(dataset, [1437, 360], torch.Generator().manual_seed(0))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, self.batch_size)


def main() -> None:
    from lightning_hooks import Apply, GradientTransforms, StatsMonitor
    from lightning_hooks.transforms import ClipByGlobalNorm

    seed_everything(0)
    trainer = Trainer(
        max_epochs=5,
        accelerator="cpu",
        devices=1,
        logger=TensorBoardLogger("runs", name="digits_python", version=""),
        log_every_n_steps=1,
        callbacks=[
            StatsMonitor(),
            GradientTransforms(apply=[Apply(ClipByGlobalNorm(max_norm=1.0), params="*")]),
        ],
    )
    trainer.fit(DigitsClassifier(), Digits())


if __name__ == "__main__":
    main()
