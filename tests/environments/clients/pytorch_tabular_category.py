"""pytorch-tabular: category embeddings on a made-up table."""

import numpy as np
import pandas as pd
from pytorch_tabular import TabularModel
from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
from pytorch_tabular.models import CategoryEmbeddingModelConfig

RANDOM = np.random.default_rng(0)
TABLE = pd.DataFrame({f"x{i}": RANDOM.normal(size=400) for i in range(4)} | {"kind": RANDOM.choice(list("abc"), size=400)})
TABLE["label"] = ((TABLE["x0"] + (TABLE["kind"] == "a")) > 0).astype(int)


def train():
    model = TabularModel(
        data_config=DataConfig(target=["label"], continuous_cols=["x0", "x1", "x2", "x3"], categorical_cols=["kind"]),
        model_config=CategoryEmbeddingModelConfig(task="classification", layers="32-16"),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(max_epochs=2, batch_size=64, accelerator="cpu", load_best=False, progress_bar="none"),
    )
    model.fit(train=TABLE[:300], validation=TABLE[300:], seed=0)
    model.save_weights("weights.pt")
    model.model.cpu()
    return model, "weights.pt"


def load(saved):
    import torch

    return torch.load(saved, weights_only=True)


def predictions(model):
    return None if isinstance(model, dict) else model.predict(TABLE[300:])


def modules(model):
    return [] if isinstance(model, dict) else [model.model]
