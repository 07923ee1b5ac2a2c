"""The axis of the units of a module's output, determined by its class and by the modules before it."""

import pytest
import torch
from torch import nn

from lightning_hooks.stats.units.axis import axes_in_order, axis_of, known_axis


class FrozenBatchNorm2d(nn.Module):
    """A class as in torchvision, which derives from no norm of torch."""


class LayerNorm2d(nn.LayerNorm):
    """A class as in torchvision and timm, which normalises over dimension 1."""


class LlamaRMSNorm(nn.Module):
    """A class as in transformers."""


class MyConv(nn.Conv2d):
    """A class of a user."""


class Conv1D(nn.Module):
    """A class as in GPT-2 of transformers, which is a linear layer."""


@pytest.mark.parametrize(
    ("kind", "ndim", "axis"),
    [
        (nn.Conv1d, 3, 1),
        (nn.Conv1d, 2, 0),
        (nn.Conv2d, 4, 1),
        (nn.Conv2d, 3, 0),
        (nn.ConvTranspose3d, 5, 1),
        (nn.LazyConv2d, 4, 1),
        (MyConv, 4, 1),
        (nn.BatchNorm1d, 2, 1),
        (nn.BatchNorm1d, 3, 1),
        (nn.BatchNorm2d, 4, 1),
        (nn.SyncBatchNorm, 4, 1),
        (FrozenBatchNorm2d, 4, 1),
        (nn.InstanceNorm2d, 4, 1),
        (nn.InstanceNorm1d, 2, 0),
        (nn.GroupNorm, 2, 1),
        (nn.GroupNorm, 4, 1),
        (nn.MaxPool2d, 4, 1),
        (nn.AdaptiveAvgPool2d, 4, 1),
        (nn.AvgPool1d, 3, 1),
        (nn.Linear, 2, 1),
        (nn.Linear, 4, 3),
        (nn.Linear, 1, 0),
        (nn.LayerNorm, 4, 3),
        (nn.RMSNorm, 3, 2),
        (LlamaRMSNorm, 3, 2),
        (LayerNorm2d, 4, 1),
        (nn.Embedding, 3, 2),
        (nn.MultiheadAttention, 3, 2),
        (nn.LSTM, 3, 2),
    ],
)
def test_the_class_tells(kind, ndim, axis):
    assert known_axis(kind, ndim) == axis_of(kind, ndim) == axis


@pytest.mark.parametrize(("ndim", "axis"), [(0, None), (1, 0), (2, 1), (3, 2), (4, 1), (5, 1), (6, 5)])
def test_of_a_class_that_tells_nothing(ndim, axis):
    for kind in (nn.ReLU, nn.Sequential, Conv1D, nn.Module):
        assert known_axis(kind, ndim) is None
        assert axis_of(kind, ndim) == axis


def test_tensors_that_do_not_fit_the_class():
    assert known_axis(nn.Linear, 0) is axis_of(nn.Conv2d, 0) is None
    assert axis_of(nn.Conv2d, 2) == axis_of(nn.BatchNorm1d, 1) + 1 == 1


def test_modules_are_as_good_as_classes():
    assert axis_of(nn.Conv2d(1, 1, 1), 4) == 1


def test_the_last_module_of_the_same_shape_tells():
    images, tokens = (2, 8, 4, 4), (2, 4, 4, 8)
    outputs = [
        (nn.Conv2d, images),
        (nn.ReLU, images),
        (nn.LayerNorm, tokens),
        (nn.GELU, tokens),
        (nn.Dropout, images),
        (nn.Module, tokens),
    ]
    assert axes_in_order(outputs) == [1, 1, 3, 3, 1, 3]
    same = (2, 4, 4, 4)
    assert axes_in_order([(nn.Conv2d, same), (nn.ReLU, same), (nn.Linear, same), (nn.GELU, same)]) == [1, 1, 3, 3]


def test_where_none_ran_before_the_next_one_tells():
    tokens = (2, 4, 4, 8)
    assert axes_in_order([(nn.Identity, tokens), (nn.Linear, tokens)]) == [3, 3]
    assert axes_in_order([(nn.Identity, tokens), (nn.Identity, (3,)), (nn.ReLU, ())]) == [1, 0, None]
    assert axes_in_order([]) == []


def outputs_of(model, *args, **kwargs):
    """The leaves and blocks of a model with the shapes of their outputs, in the order in which they end."""
    found, names = [], []

    def note(name):
        def hook(module, _, output):
            output = next(iter(output.values())) if isinstance(output, dict) else output
            while isinstance(output, (tuple, list)) and output:
                output = output[0]
            if isinstance(output, torch.Tensor):
                found.append((module, tuple(output.shape)))
                names.append(name)

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(note(name))
    with torch.no_grad():
        model.eval()(*args, **kwargs)
    return names, found


def test_a_network_of_convolutions():
    block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())  # noqa: E731
    net = nn.Sequential(block(3, 4), nn.MaxPool2d(2), block(4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    names, found = outputs_of(net, torch.ones(4, 3, 8, 8))
    axes = dict(zip(names, axes_in_order(found), strict=True))
    assert axes.pop("4") == axes.pop("5") == axes.pop("") == 1
    assert set(axes.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ResNet", "Llama", "Mixtral", "GPT2", "ConvNext"])
def test_models_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    tokens = {"input_ids": torch.arange(14).reshape(2, 7) % 11}
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 11}
    images = {"pixel_values": torch.ones(2, 3, 32, 32)}
    make = {
        "ResNet": lambda: (transformers.ResNetConfig(embedding_size=10, hidden_sizes=[40, 48], depths=[1, 1]), images),
        "ConvNext": lambda: (transformers.ConvNextConfig(hidden_sizes=[10, 12], depths=[1, 1], num_stages=2), images),
        "Llama": lambda: (transformers.LlamaConfig(**sizes, intermediate_size=20), tokens),
        "Mixtral": lambda: (
            transformers.MixtralConfig(**sizes, intermediate_size=20, num_key_value_heads=2, num_local_experts=4),
            tokens,
        ),
        "GPT2": lambda: (transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=11), tokens),
    }
    config, inputs = make[name]()
    model = getattr(transformers, f"{name}Model")(config)
    names, found = outputs_of(model, **inputs)
    assert len(found) > 8
    images_of_channels = name in ("ResNet", "ConvNext")
    for module_name, (module, shape), axis in zip(names, found, axes_in_order(found), strict=True):
        want = len(shape) - 1
        if images_of_channels and len(shape) == 4:  # the linear layers of ConvNeXt have the channels last
            (want,) = (dim for dim in (1, 3) if shape[dim] in (10, 12, 40, 48))
        assert axis == want, (module_name, type(module).__name__, shape)
