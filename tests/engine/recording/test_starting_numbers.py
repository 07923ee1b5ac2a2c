import torch
from torch import nn

from lightning_hooks.engine.recording.starting_numbers import StartingNumbers


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise TypeError("this tensor has no operations")


def test_each_kind_of_tensor_is_read_or_left_out():
    model = nn.Module()
    model.empty = nn.Parameter(torch.empty(0))
    model.narrow = nn.Parameter(torch.tensor([1.0, torch.nan], dtype=torch.float16))
    model.later = nn.UninitializedParameter()
    model.register_buffer("waves", torch.tensor([1.0, complex(0, torch.inf)]))
    model.register_buffer("eighth", torch.tensor([1.0, torch.nan]).to(torch.float8_e5m2))
    model.register_buffer("count", torch.tensor(3))
    model.register_buffer("remote", torch.empty(2, device="meta"))
    model.register_buffer("finite", torch.ones(2))
    model._buffers["refusing"] = torch.ones(2).as_subclass(Refusing)
    assert StartingNumbers(model).nonfinite == {"narrow", "waves", "eighth"}


def test_a_model_without_tensors_has_none():
    assert StartingNumbers(nn.Identity()).nonfinite == frozenset()
