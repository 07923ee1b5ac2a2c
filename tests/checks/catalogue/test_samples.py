import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_hooks import check
from tests.checks._training import batch, net, result_of

NAME = "SamplesAreIndependent"
SERIES = torch.randn(12, 5, 4, generator=torch.Generator().manual_seed(3))


class Named(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.body, self.mixer, self.head = net(), Mixer(change), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.mixer(self.body(x)))


class Mixer(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x)


@pytest.mark.parametrize(
    "change",
    [lambda x: x - x.mean(0), lambda x: x.softmax(0), lambda x: x.T.reshape(x.shape), lambda x: x / x.norm()],
    ids=["mean", "softmax", "reshape", "norm"],
)
def test_a_module_that_mixes_samples_is_named(change):
    result = result_of(NAME, Named(change))
    assert (result.status, result.rows) == ("fail", ("mixer",)) and result.measured > result.threshold


def test_a_softmax_over_features_and_batch_norms_pass():
    result = result_of(NAME, Named(lambda x: x.softmax(1)))
    assert (result.status, result.measured) == ("pass", 0.0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    result = result_of(NAME, model)
    assert result.status == "pass" and result.message.endswith("batch norms mix samples in training on purpose: 1")
    assert model[1].training


def test_outputs_that_are_not_finite_are_skipped_with_that_reason():
    result = result_of(NAME, Named(lambda x: (x - 1000).log()))
    assert (result.status, result.message) == ("skip", "the loss is not finite; see NonFinite")


class Recurrent(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        torch.manual_seed(0)
        self.memory, self.head = nn.LSTM(4, 4, batch_first=batch_first), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


def test_batch_first_is_judged_where_labels_say_which_dimension_holds_samples():
    labels = batch()[1]
    assert result_of(NAME, Recurrent(True), (SERIES, labels)).status == "pass"
    assert (result_of(NAME, Recurrent(False), (SERIES, labels))).rows == ("memory",)

    class Sequence(Recurrent):
        def forward(self, x):
            return self.head(self.memory(x)[0])

    def loss(output, target):
        return (output - target[..., :3]).square().mean()

    result = result_of(NAME, Sequence(False), (SERIES, SERIES), loss)
    assert result.status == "skip" and "memory has batch_first=False" in result.message


class Attention(nn.Module):
    """An encoder of torch for [time, batch, features]."""

    def __init__(self, positions=None):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = nn.TransformerEncoderLayer(4, 2, 8, 0.0), nn.Linear(4, 4)
        self.positions = positions

    def forward(self, x):
        return self.head(self.encoder(x if self.positions is None else x + self.positions[: len(x)]))


def test_rows_that_nothing_but_their_numbers_tells_apart_are_samples():
    given = SERIES, SERIES.flip(0)
    result = result_of(NAME, Attention(), given, F.mse_loss)
    assert (result.status, result.rows) == ("fail", ("encoder.self_attn",))
    # Positions along the first dimension say that it holds the time.
    result = result_of(NAME, Attention(torch.randn(12, 1, 4)), given, F.mse_loss)
    assert result.status == "skip" and "encoder.self_attn has batch_first=False" in result.message


def test_as_many_samples_as_features_are_no_adjacency_matrix():
    def given(labels):
        return torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), labels

    labels = torch.arange(4) % 3
    assert result_of(NAME, Named(lambda x: x), given(labels)).status == "pass"
    assert result_of(NAME, Named(lambda x: x - x.mean(0)), given(labels)).rows == ("mixer",)
    targets = torch.randn(4, 3)
    assert result_of(NAME, Named(lambda x: x.softmax(0)), given(targets), F.mse_loss).rows == ("mixer",)


class Graph(nn.Module):
    """Averages over neighbours, by a matrix or by edges."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, related):
        hidden = self.body(x).relu()
        if related.is_floating_point():
            return self.head(related @ hidden)
        source, target = related
        return self.head(hidden.index_add(0, target, hidden[source]))


MATRIX = torch.eye(12).roll(1, 0) + torch.eye(12)
EDGES = torch.stack([torch.arange(12), torch.arange(12).roll(1)])


@pytest.mark.parametrize("related", [MATRIX, EDGES], ids=["matrix", "edges"])
def test_nodes_that_a_constant_of_the_step_relates_are_skipped(related):
    def step(module, given):
        return F.cross_entropy(module(given[0], related)[:8], given[1][:8])

    result = check(Graph(), batch(), step=step, checks=[NAME])[NAME]
    assert result.status == "skip" and "relates the samples with each other, as an adjacency matrix does" in result.message


def test_nodes_whose_matrix_is_in_the_batch_are_skipped():
    inputs, labels = batch()
    result = result_of(NAME, Graph(), ((inputs, MATRIX), labels))
    assert (result.status, result.message) == (
        "skip",
        "batch[0][1] may relate its 12 rows with each other, as an adjacency matrix does",
    )


def test_a_mask_over_samples_that_the_step_makes_itself_is_no_graph():
    def attend(x):
        hidden = torch.ones(len(x), len(x)).triu(1).bool()
        return (x @ x.T).masked_fill(hidden, -1e9).softmax(1) @ x

    assert result_of(NAME, Named(attend)).rows == ("mixer",)


def test_batch_norms_in_a_plain_list_mix_samples_on_purpose():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norms = net(), [nn.BatchNorm1d(3)]

        def forward(self, x):
            return self.norms[0](self.body(x))

    model = Listed()
    result = result_of(NAME, model)
    assert result.status == "pass" and result.message.endswith("batch norms mix samples in training on purpose: norms[0]")
    assert model.norms[0].training and model.norms[0].num_batches_tracked == 0


def test_a_contrastive_loss_is_named_and_passes():
    def contrastive(output, target):
        features = F.normalize(output)
        return F.cross_entropy(features @ features.T, torch.arange(len(output)))

    result = result_of(NAME, net(), loss=contrastive)
    assert result.status == "pass" and "as contrastive losses have" in result.message


def test_a_loss_that_mixes_samples_without_comparing_them_fails():
    result = result_of(NAME, net(), loss=lambda output, target: F.cross_entropy(output - output.mean(0), target))
    assert result.status == "fail" and "mixes samples between the output of the model and the loss" in result.message


def test_tokens_are_followed_from_their_vectors():
    def model(dim):
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(9, 6), nn.Softmax(dim), nn.Flatten(), nn.Linear(24, 3))

    tokens = torch.randint(9, (12, 4), generator=torch.Generator().manual_seed(0))
    assert result_of(NAME, model(2), (tokens, batch()[1])).status == "pass"
    assert result_of(NAME, model(0), (tokens, batch()[1])).rows == ("1",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((torch.ones(1, 4), torch.zeros(1, dtype=torch.long)), "the batch has one sample"),
        (
            (torch.ones(6, 4), torch.zeros(3, dtype=torch.long)),
            "the tensors of the batch have different first dimensions (6 and 3)",
        ),
    ],
)
def test_a_batch_whose_samples_are_not_known_is_skipped(given, said):
    result = result_of(NAME, net(), given, lambda output, target: output.square().mean())
    assert (result.status, result.message) == ("skip", said)


@pytest.mark.parametrize("is_model_fault", [False, True])
def test_samples_that_the_step_mixes_before_the_model_are_no_fault_of_it(is_model_fault):
    model = Named(lambda x: x - x.mean(0)) if is_model_fault else net()

    def step(module, given):
        inputs, labels = given
        return F.cross_entropy(module(0.7 * inputs + 0.3 * inputs.roll(1, 0)), labels)

    result = check(model, batch(), step=step, checks=[NAME])[NAME]
    if is_model_fault:
        assert (result.status, result.rows) == ("fail", ("body.0",))
    else:
        assert result.status == "pass" and "before it calls the model, as mixup does" in result.message


def test_nodes_of_a_graph_whose_adjacency_is_a_buffer_are_skipped():
    model = Named(lambda x: model.edges[: len(x), : len(x)] @ x)
    model.register_buffer("edges", torch.ones(12, 12) / 12)
    result = result_of(NAME, model)
    assert (result.status, result.message) == ("skip", "edges relates the samples with each other, as an adjacency matrix does")


def test_outputs_that_are_not_finite_say_nothing_about_samples():
    torch.manual_seed(0)
    result = result_of(NAME, Named(lambda x: x.relu().log()))
    assert result.status in ("pass", "skip")


class Positions(nn.Module):
    """Adds an encoding of positions to [batch, time, features]."""

    def __init__(self, dim):
        super().__init__()
        self.dim, self.head = dim, nn.Linear(20, 3)
        self.register_buffer("positions", torch.randn(30, 4, generator=torch.Generator().manual_seed(5)))

    def forward(self, x):
        positions = self.positions[: x.shape[self.dim]]
        return self.head((x + (positions[:, None] if self.dim == 0 else positions)).flatten(1))


def test_an_output_that_depends_on_the_place_of_its_sample_is_a_warning():
    result = result_of(NAME, Positions(0), (SERIES, batch()[1]))
    assert (result.status, result.rows) == ("warn", ("the model",))
    assert "the output of a sample depends on its place in the batch" in result.message and result.measured > 0.1
    assert result_of(NAME, Positions(1), (SERIES, batch()[1])).status == "pass"


def test_random_numbers_in_evaluation_are_no_place():
    assert result_of(NAME, Named(lambda x: x + torch.randn_like(x))).status == "pass"
