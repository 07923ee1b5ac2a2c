"""darts: NBEATS with its checkpoints, on a made-up series."""

import numpy as np
from darts.models import NBEATSModel
from darts.utils.timeseries_generation import linear_timeseries, sine_timeseries

SERIES = (linear_timeseries(length=120, end_value=2.0) + sine_timeseries(length=120, value_frequency=1 / 12)).astype(np.float32)


def train():
    model = NBEATSModel(
        input_chunk_length=24,
        output_chunk_length=12,
        num_stacks=6,
        layer_widths=32,
        n_epochs=3,
        random_state=0,
        model_name="nbeats",
        work_dir="darts",
        save_checkpoints=True,
        pl_trainer_kwargs={"accelerator": "cpu"},
    )
    model.fit(SERIES[:-12], val_series=SERIES[-48:])
    return model, "darts"


def load(saved):
    return NBEATSModel.load_from_checkpoint("nbeats", work_dir=saved, best=False)


def predictions(model):
    return model.predict(12, series=SERIES[:-12]).values()


def modules(model):
    return [model.model]
