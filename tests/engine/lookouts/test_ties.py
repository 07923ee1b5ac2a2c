"""A lookout notes a tie that is declared or was there, and that is lost; it reads the code of the model."""

import copy
import linecache
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_hooks import assert_no_hooks
from lightning_hooks.engine.lookouts.declared_ties import declared_ties
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer


class Words(nn.Module):
    """Predicts the next word with the embedding's own weight."""

    def __init__(self, bias=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=bias)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.head.weight = self.embed.weight

    def forward(self, text):
        return self.head(self.embed(text).tanh())


class Apart(nn.Module):
    """An embedding and a head without a tie."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    forward = Words.forward


def said(model, rules=("TieBroken",), steps=20):
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)

    def loop(watched, step):
        text = torch.randint(20, (4, 6))
        optimizer.zero_grad()
        F.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
        optimizer.step()

    found = in_loop(model, optimizer, loop, rules, steps)
    assert_no_hooks(model)
    return found


def with_vectors():
    model = Words()
    model.embed.weight = nn.Parameter(torch.randn(20, 8))
    return model


def test_a_tie_of_the_code_that_a_new_parameter_broke_is_named_with_its_line():
    finding = said(with_vectors())["TieBroken"]
    assert (finding.rows, finding.first_step, finding.severity) == (("head.weight",), 0, "warning")
    line = Words.__init__.__code__.co_firstlineno + 6
    assert finding.message == (
        "head.weight: `Words.__init__` ties it to embed.weight, but the two are different parameters now, and each is trained "
        f"alone (tests/engine/lookouts/test_ties.py:{line} in __init__)."
    )


def assigned():
    model = Words()
    model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()}, assign=True)
    return model


class Listed(nn.Module):
    """Ties by index."""

    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(20, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 20))
        self.layers[-1].weight = self.embed.weight
        self.layers[1].weight = nn.Parameter(self.embed.weight.clone())

    def forward(self, text):
        return self.layers(self.embed(text))


class Switched(Words):
    """Ties if it is told to, and loses the tie."""

    def __init__(self, tie):
        super().__init__()
        self.tie = tie
        self.head = nn.Linear(8, 20)
        if tie:
            self.head.weight = self.embed.weight
        self.head = nn.Linear(8, 20)


@pytest.mark.parametrize("model", [assigned, Listed, lambda: Switched(True)], ids=["assigned", "by index", "switched on"])
def test_other_ties_of_the_code_are_read(model):
    assert said(model())["TieBroken"].severity == "warning"


class Declared(Apart):
    """Declares its tie as transformers does."""

    _tied_weights_keys = ("head.weight",)

    def __init__(self, tie=True):
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=tie)

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head


def test_a_tie_that_a_model_of_transformers_declares_is_named():
    finding = said(Declared())["TieBroken"]
    assert (finding.rows, finding.severity) == (("head.weight",), "warning")
    assert finding.message == (
        "head.weight: `config.tie_word_embeddings` of Declared ties it to embed.weight, but the two are different parameters "
        "now, and each is trained alone."
    )


def cloned():
    model = Apart()
    model.head.weight = nn.Parameter(model.embed.weight.clone())
    return model


def test_a_head_that_began_as_a_copy_is_a_note():
    finding = said(cloned())["TieBroken"]
    assert (finding.rows, finding.severity) == (("head.weight",), "info")
    assert finding.message == (
        "head.weight: it began as a copy of embed.weight, number for number, and each of the two is trained alone."
    )


def test_two_parameters_in_one_memory_are_a_note():
    model = Apart()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    finding = said(model)["TieBroken"]
    assert finding.severity == "info"
    assert finding.message == (
        "head.weight: it shares its memory with embed.weight but is a parameter of its own, so that an optimizer changes the "
        "same numbers twice in each step."
    )


class Siamese(nn.Module):
    """Two copies of one encoder, and an average of it."""

    def __init__(self):
        super().__init__()
        self.one = Apart()
        self.other, self.teacher = copy.deepcopy(self.one), copy.deepcopy(self.one).requires_grad_(False)

    def forward(self, text):
        return self.one(text) + self.other(text) + self.teacher(text)


def copied():
    return copy.deepcopy(Words())


def kept_by_data():
    model = Words()
    model.embed.weight.data.copy_(torch.randn(20, 8))
    return model


def frozen_with_vectors():
    model = with_vectors()
    model.embed.weight.requires_grad_(False)
    return model


class Zeros(Apart):
    """Both begin at zero, but are of other shapes than each other's."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 20)
        self.wide = nn.Embedding(20, 16)


class Untied(Words):
    """Takes the tie of its base back, on purpose."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 20)


@pytest.mark.parametrize(
    "model",
    [
        Words,
        Apart,
        Siamese,
        copied,
        kept_by_data,
        frozen_with_vectors,
        Zeros,
        Untied,
        lambda: Switched(False),
        lambda: Declared(False),
        lambda: Words().double(),
    ],
)
def test_ties_that_hold_and_what_is_apart_on_purpose_are_no_finding(model):
    assert said(model()) == {}


class Tied(Net):
    """A module of Lightning whose tie is lost."""

    def __init__(self):
        super().__init__()
        self.words = with_vectors()

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.words(torch.arange(20)).square().mean()


def test_a_fit_of_a_trainer_is_looked_at_too(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(8)]
    assert in_trainer(tmp_path, Tied(), batches, ["TieBroken"])["TieBroken"].rows == ("words.head.weight",)


def test_no_number_of_the_model_and_no_generator_moves():
    model, twin = with_vectors(), with_vectors()
    torch.manual_seed(3)
    said(model)
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(20):
        text = torch.randint(20, (4, 6))
        optimizer.zero_grad()
        F.cross_entropy(twin(text).flatten(0, 1), text.flatten()).backward()
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("now", ["(\n", 'class A:\n    text = """\n', "\n", ""])
def test_a_file_that_was_edited_since_declares_no_tie(monkeypatch, now):
    scope = {"Module": nn.Module}
    exec(compile("class Model(Module):\n    def __init__(self):\n        super().__init__()", "edited.py", "exec"), scope)
    monkeypatch.setitem(linecache.cache, "edited.py", (1, None, now.splitlines(keepends=True), "edited.py"))
    assert list(declared_ties(scope["Model"]())) == []
