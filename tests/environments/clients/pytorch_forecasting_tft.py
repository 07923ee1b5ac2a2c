"""pytorch-forecasting: the Temporal Fusion Transformer of its tutorial, on made-up sales."""

import numpy as np
import pandas as pd
from lightning.pytorch import Trainer, seed_everything
from pytorch_forecasting import QuantileLoss, TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import GroupNormalizer


def loaders():
    random = np.random.default_rng(0)
    time = np.arange(60)
    frames = []
    for shop in range(6):
        price = random.uniform(1, 2, size=60)
        sold = 10 + shop + 3 * np.sin(time / 6 + shop) - price + random.normal(0, 0.3, size=60)
        frames.append(pd.DataFrame({"time": time, "shop": str(shop), "price": price, "sold": sold}))
    data = pd.concat(frames, ignore_index=True)
    training = TimeSeriesDataSet(
        data[data["time"] <= 53],
        time_idx="time",
        target="sold",
        group_ids=["shop"],
        min_encoder_length=12,
        max_encoder_length=24,
        max_prediction_length=6,
        static_categoricals=["shop"],
        time_varying_known_reals=["time", "price"],
        time_varying_unknown_reals=["sold"],
        target_normalizer=GroupNormalizer(groups=["shop"]),
        add_relative_time_idx=True,
        add_target_scales=True,
        add_encoder_length=True,
    )
    validation = TimeSeriesDataSet.from_dataset(training, data, predict=True, stop_randomization=True)
    return training, training.to_dataloader(train=True, batch_size=16), validation.to_dataloader(train=False, batch_size=16)


def train():
    seed_everything(0)
    training, batches, validation = loaders()
    model = TemporalFusionTransformer.from_dataset(
        training, learning_rate=0.03, hidden_size=16, attention_head_size=2, hidden_continuous_size=8, loss=QuantileLoss()
    )
    trainer = Trainer(max_epochs=2, accelerator="cpu", gradient_clip_val=0.1, limit_train_batches=12)
    trainer.fit(model, batches, validation)
    return model, trainer.checkpoint_callback.best_model_path


def load(saved):
    return TemporalFusionTransformer.load_from_checkpoint(saved)


def predictions(model):
    seed_everything(1)
    batch, _ = next(iter(loaders()[2]))
    loss = model.loss(model(batch)["prediction"], (batch["decoder_target"], None))
    return model.predict(loaders()[2], trainer_kwargs={"accelerator": "cpu", "logger": False}), loss
