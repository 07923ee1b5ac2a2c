"""scvi-tools: SCVI on the cells that it makes up."""

import scvi


def cells():
    scvi.settings.seed = 0
    data = scvi.data.synthetic_iid()
    scvi.model.SCVI.setup_anndata(data, batch_key="batch")
    return data


def train():
    model = scvi.model.SCVI(cells(), n_layers=1)
    model.train(max_epochs=4, accelerator="cpu")
    model.save("saved")
    return model, "saved"


def load(saved):
    return scvi.model.SCVI.load(saved, adata=cells())


def predictions(model):
    return model.get_latent_representation(), model.history["elbo_train"] if model.history else None


def modules(model):
    return [model.module]
