"""What `check` says of one batch: of healthy models nothing, of faulty ones the fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_hooks import CheckReport, check


def checked(
    model: nn.Module, batch: Any, step: Callable[[nn.Module, Any], Tensor] | None = None, **options: Any
) -> CheckReport:
    """Check a model with AdamW."""
    return check(model, batch, step=step, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), **options)


def remarks(report: CheckReport) -> list[str]:
    return [f"{each.check}: {each.message}" for each in report.of("fail") + report.of("warn")]


# -- healthy models --------------------------------------------------------------------------------------------------------


class GraphAttention(nn.Module):
    """Attention of each node to its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.scores, self.head = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        hidden = self.values(x)
        scores = functional.leaky_relu(self.scores(hidden) + self.scores(hidden).T).masked_fill(neighbours == 0, -1e9)
        return self.head(torch.softmax(scores, 1) @ hidden)


def test_nodes_of_a_graph() -> None:
    """Nodes of one graph exchange messages on purpose; the loss takes the nodes of the training set."""
    torch.manual_seed(0)
    neighbours = (torch.rand(40, 40) < 0.1).float() + torch.eye(40)
    batch = torch.randn(40, 8), torch.randint(3, (40,))

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0], neighbours)[:30], batch[1][:30])

    report = checked(GraphAttention(), batch, step)
    assert report["SamplesAreIndependent"].status not in ("fail", "warn")


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


@pytest.mark.parametrize("depth", [4, 16])
def test_batch_norms_with_fresh_statistics(depth: int) -> None:
    """Sixteen convolutions with batch norms train well, but with fresh running statistics the signal vanishes in evaluation."""
    torch.manual_seed(0)
    blocks = [_block(16, 16, 2 if place % 4 == 3 else 1) for place in range(depth - 1)]
    model = nn.Sequential(_block(3, 16), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    y = torch.randint(4, (16,))
    x = 0.5 * torch.randn(16, 3, 16, 16) + torch.randn(4, 3, 1, 1)[y]
    report = checked(model, (x, y), loss=nn.CrossEntropyLoss(), checks=["ConstantOutput"])
    assert report["ConstantOutput"].status not in ("fail", "warn")


# -- classes of a library --------------------------------------------------------------------------------------------------


def _sizes(**options: int) -> dict[str, int]:
    return {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, **options}


def _dinov2(library: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    model = library.Dinov2ForImageClassification(library.Dinov2Config(**_sizes(image_size=32, patch_size=8, num_labels=10)))
    return model, {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(10, (4,))}


def _xlnet(library: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = library.XLNetConfig(vocab_size=99, d_model=32, n_layer=1, n_head=4, d_inner=64, num_labels=3)
    return library.XLNetForSequenceClassification(config), _tokens()


def _big_bird(library: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = library.BigBirdConfig(vocab_size=99, attention_type="original_full", **_sizes(num_labels=3))
    return library.BigBirdForSequenceClassification(config), _tokens()


def _tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 99, (4, 12)), "labels": torch.randint(3, (4,))}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`transformers`, which may not ask its hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.parametrize("make", [_dinov2, _xlnet, _big_bird])
def test_parameters_that_a_task_does_not_use(library: Any, make: Callable[[Any], tuple[nn.Module, dict[str, Tensor]]]) -> None:
    """A class of a library has parameters that the task does not use: that is true, and the user cannot mend it."""
    torch.manual_seed(0)
    report = checked(*make(library), checks=["NoGradient"])
    assert report["NoGradient"].status != "fail"


@pytest.mark.slow
def test_a_mask_whose_first_elements_do_not_matter(library: Any) -> None:
    """The first lags of a time series lie outside the context, so their mask has no influence: as documented."""
    torch.manual_seed(0)
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in _OF_PART.items()}
    config = library.TimeSeriesTransformerConfig(
        prediction_length=6, context_length=12, lags_sequence=[1, 2, 3], num_time_features=1, d_model=16, **sizes
    )
    batch = {
        "past_values": torch.randn(4, 15),
        "past_time_features": torch.randn(4, 15, 1),
        "past_observed_mask": torch.ones(4, 15),
        "future_values": torch.randn(4, 6),
        "future_time_features": torch.randn(4, 6, 1),
    }
    report = checked(library.TimeSeriesTransformerForPrediction(config), batch, checks=["InputsMatter"])
    assert report["InputsMatter"].status != "fail"


_OF_PART = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}

# -- faults of one batch ---------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(16, 4, batch_first=batch_first), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0])


@pytest.mark.parametrize(
    ("batch_first", "expected"),
    [(True, "pass"), (False, "fail")],
)
def test_attention_over_the_samples(batch_first: bool, expected: str) -> None:
    """`nn.MultiheadAttention` without `batch_first` gets [batch, tokens, width], and attends to other samples."""
    torch.manual_seed(0)
    batch = torch.randn(4, 6, 16), torch.randn(4, 6, 16)
    report = check(Attention(batch_first), batch, loss=nn.functional.mse_loss, checks=["SamplesAreIndependent"])
    assert report["SamplesAreIndependent"].status == expected


class LanguageModel(nn.Module):
    """A GRU that predicts a token at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(50, 32), nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.embedding(x))[0])


def _classify(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], step: Callable[..., Tensor]) -> CheckReport:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    batch = change(torch.randn(64, 64), torch.randint(10, (64,)))
    return checked(model, batch, lambda model, batch: step(model(batch[0]), batch[1]))


def _as_they_are(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, y


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_healthy_classifier(reduction: str) -> None:
    """A perceptron with a cross entropy, of which the sum is as right as the mean: nothing is wrong."""
    assert remarks(_classify(_as_they_are, partial(functional.cross_entropy, reduction=reduction))) == []


def test_a_flipped_sign() -> None:
    """The first loss is −2.3, and a cross entropy is never below 0."""
    said = remarks(_classify(_as_they_are, lambda out, y: -functional.cross_entropy(out, y)))
    assert any(word in remark for remark in said for word in ("sign", "negative", "below 0"))


def test_labels_of_one_class() -> None:
    """All labels of the batch are 0."""
    said = remarks(_classify(lambda x, y: (x, 0 * y), functional.cross_entropy))
    assert any(word in remark for remark in said for word in ("label", "target"))


def test_a_loss_that_is_detached() -> None:
    """The loss is cut from the model: no parameter gets a gradient."""
    report = _classify(_as_they_are, lambda out, y: functional.cross_entropy(out, y).detach().requires_grad_())
    assert report["NoGradient"].status == "fail"


def test_inputs_that_are_zero() -> None:
    """All inputs are 0, so no gradient reaches the first weight."""
    report = _classify(lambda x, y: (0 * x, y), functional.cross_entropy)
    assert report["InputNotNormalised"].status == "warn" and "0 everywhere" in report["InputNotNormalised"].message


def test_inputs_of_pixels() -> None:
    """Inputs of a size of 100 enter a layer with no norm."""
    report = _classify(lambda x, y: (100 * x.abs(), y), functional.cross_entropy)
    assert report["InputNotNormalised"].status == "warn"


def test_targets_that_are_the_inputs() -> None:
    """The tokens to predict are the tokens that are given, because nothing shifts them."""
    torch.manual_seed(0)
    tokens = torch.randint(50, (16, 20))

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    said = remarks(checked(LanguageModel(), (tokens, tokens.clone()), step))
    assert any(word in remark for remark in said for word in ("equal", "same", "shift"))
