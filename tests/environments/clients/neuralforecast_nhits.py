"""neuralforecast: NHITS and NBEATS on the air passengers that it ships."""

from neuralforecast import NeuralForecast
from neuralforecast.models import NBEATS, NHITS
from neuralforecast.utils import AirPassengersDF


def train():
    settings = {"input_size": 24, "h": 12, "max_steps": 25, "accelerator": "cpu", "enable_progress_bar": False}
    forecast = NeuralForecast(models=[NHITS(**settings), NBEATS(**settings)], freq="ME")
    forecast.fit(df=AirPassengersDF)
    forecast.save("saved", overwrite=True)
    return forecast, "saved"


def load(saved):
    return NeuralForecast.load(saved)


def predictions(forecast):
    return forecast.predict(df=AirPassengersDF)


def modules(forecast):
    return list(forecast.models)
