"""gluonts: DeepAR on made-up daily series."""

from pathlib import Path

import numpy as np
import torch
from gluonts.dataset.common import ListDataset
from gluonts.model.predictor import Predictor
from gluonts.torch import DeepAREstimator
from lightning.pytorch import seed_everything

TIME = np.arange(120)
DATA = ListDataset(
    [{"start": "2024-01-01", "target": 5 + n + np.sin(TIME / 7 + n)} for n in range(4)],
    freq="D",
)


def train():
    seed_everything(0)
    estimator = DeepAREstimator(
        freq="D",
        prediction_length=7,
        num_layers=1,
        hidden_size=16,
        batch_size=8,
        num_batches_per_epoch=8,
        trainer_kwargs={"max_epochs": 2, "accelerator": "cpu"},
    )
    predictor = estimator.train(DATA)
    Path("saved").mkdir()
    predictor.serialize(Path("saved"))
    return predictor, "saved"


def load(saved):
    return Predictor.deserialize(Path(saved))


def predictions(predictor):
    np.random.seed(0)
    torch.manual_seed(0)
    return [forecast.samples for forecast in predictor.predict(DATA)]


def modules(predictor):
    return [predictor.prediction_net]
