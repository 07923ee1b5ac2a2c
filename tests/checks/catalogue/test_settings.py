import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checks._training import batch, net, result_of

SERIES = torch.randn(12, 5, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("kind", "options", "status"),
    [
        (torch.optim.Adam, {}, "pass"),
        (torch.optim.AdamW, {"betas": (0.999, 0.9)}, "warn"),
        (torch.optim.NAdam, {"betas": (0.95, 0.5)}, "warn"),
        (torch.optim.Adam, {"betas": (0.0, 0.9)}, "pass"),
        (torch.optim.Adam, {"betas": (0.9, 0.9)}, "pass"),
        (torch.optim.SGD, {}, "pass"),
    ],
)
def test_betas_that_are_swapped_are_a_warning(kind, options, status):
    model = net()
    result = result_of("SwappedBetas", model, optimizer=kind(model.parameters(), lr=1e-3, **options))
    assert result.status == status
    if status == "warn":
        first, second = options["betas"]
        assert (result.measured, result.threshold) == options["betas"]
        assert f"optimizer 0 ({kind.__name__}) has betas of {first:g} and {second:g}" in result.message


class Adan(torch.optim.SGD):
    """An optimizer with the betas of Adan, of which the second one is of differences of gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=1e-3)
        self.param_groups[0]["betas"] = (0.98, 0.92, 0.99)


def test_three_betas_have_other_roles():
    model = net()
    result = result_of("SwappedBetas", model, optimizer=Adan(model.parameters()))
    assert (result.status, result.message) == ("pass", "no optimizer has two betas")


class Functional(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.body, self.head, self.rate = nn.Linear(4, 8), nn.Linear(8, 3), rate

    def forward(self, x):
        return self.head(F.dropout(self.body(x).relu(), self.rate, self.training))


class Recurrent(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.memory, self.head = nn.LSTM(4, 8, 2, batch_first=True, dropout=rate), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


class Attending(Recurrent):
    def __init__(self, rate):
        super().__init__(0.0)
        self.memory, self.head = nn.MultiheadAttention(4, 2, dropout=rate, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.memory(x, x, x)[0][:, -1])


@pytest.mark.parametrize(("kind", "row"), [(Functional, "the model"), (Recurrent, "memory"), (Attending, "memory")])
def test_a_dropout_of_almost_everything_is_seen_however_it_is_written(kind, row):
    given = (batch()[0] if kind is Functional else SERIES), batch()[1]
    result = result_of("DropoutTooHigh", kind(0.95), given)
    assert (result.status, result.rows, result.message) == ("warn", (row,), f"{row}: drops 95% of what it gets")
    assert result_of("DropoutTooHigh", kind(0.5), given).status == "pass"


@pytest.mark.parametrize("drop", [lambda x: torch.dropout(x, 0.95, train=False), lambda x: torch.dropout(x, 0.95, False)])
def test_a_dropout_that_is_off_drops_nothing(drop):
    class Off(Functional):
        def forward(self, x):
            return self.head(drop(self.body(x)))

    assert result_of("DropoutTooHigh", Off(0.0)).status == "pass"


def dropped(*rates, wrap=lambda layers: nn.Sequential(*layers)):
    blocks = [wrap([nn.Linear(8, 8), nn.ReLU(), nn.Dropout(rate)]) for rate in rates]
    return nn.Sequential(nn.Linear(4, 8), *blocks, nn.Linear(8, 3))


class Residual(nn.Sequential):
    def __init__(self, layers):
        super().__init__(*layers)

    def forward(self, x):
        return x + super().forward(x)


def test_what_successive_dropouts_keep_is_multiplied_until_paths_meet():
    result = result_of("DropoutTooHigh", dropped(0.8, 0.8, 0.8))
    assert (result.status, result.rows) == ("warn", ("3.2",)) and result.measured == pytest.approx(0.992)
    assert "3 successive dropouts, of which this is the last, keep 0.008 together" in result.message
    assert result_of("DropoutTooHigh", dropped(0.8, 0.8, 0.8, wrap=Residual)).status == "pass"
    assert result_of("DropoutTooHigh", dropped(*6 * [0.5])).status == "pass"


def test_dropouts_with_no_layer_between_them_count_as_one():
    model = net(nn.Dropout(0.7), nn.ReLU(), nn.Dropout(0.7), nn.Linear(3, 3))
    result = result_of("DropoutTooHigh", model)
    assert (result.status, result.rows) == ("warn", ("5",))
    assert result.message == "5: this dropout and those before it with no layer between them drop 91% together"


def test_inputs_may_be_dropped():
    model = nn.Sequential(nn.Dropout(0.95), *net())
    result = result_of("DropoutTooHigh", model)
    assert (result.status, result.message) == ("pass", "nothing behind the first layer is dropped")
