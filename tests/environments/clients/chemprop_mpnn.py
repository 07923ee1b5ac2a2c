"""chemprop: message passing over alkanes and alcohols, as in its notebook."""

from chemprop import data, featurizers, models, nn
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint


def loaders():
    smiles = ["C" * n + tail for n in range(1, 13) for tail in ("", "O", "N", "C(=O)O")]
    points = [data.MoleculeDatapoint.from_smi(each, [float(len(each))]) for each in smiles]
    halves = points[::2], points[1::2]
    sets = [data.MoleculeDataset(half, featurizers.SimpleMoleculeMolGraphFeaturizer()) for half in halves]
    return [data.build_dataloader(half, num_workers=0, shuffle=False, batch_size=8) for half in sets]


def train():
    seed_everything(0)
    metrics = [nn.metrics.RMSE(), nn.metrics.MAE()]
    model = models.MPNN(nn.BondMessagePassing(), nn.MeanAggregation(), nn.RegressionFFN(), True, metrics)
    checkpoint = ModelCheckpoint("checkpoints", "best-{epoch}", "val_loss", mode="min", save_last=True)
    trainer = Trainer(logger=False, accelerator="cpu", max_epochs=4, callbacks=[checkpoint])
    trainer.fit(model, *loaders())
    return model, "checkpoints/last.ckpt"


def load(saved):
    return models.MPNN.load_from_checkpoint(saved)


def predictions(model):
    return Trainer(logger=False, accelerator="cpu", enable_progress_bar=False).predict(model, loaders()[1])
