import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checks._training import result_of

NAME = "FutureIsHidden"
TEXT = torch.randint(20, (4, 9), generator=torch.Generator().manual_seed(0))


class Language(nn.Module):
    def __init__(self, mask=True, over=2):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.query, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)
        self.mask, self.over = mask, over

    def forward(self, x):
        hidden = self.tokens(x)
        hidden = hidden + F.scaled_dot_product_attention(self.query(hidden), hidden, hidden, is_causal=self.mask)
        return (self.head(hidden) - self.head(hidden).logsumexp(self.over, keepdim=True)).flatten(0, 1)


def loss(output, target):
    return F.cross_entropy(output, target.flatten())


def test_attention_with_a_causal_mask_passes_and_without_one_fails():
    given = TEXT[:, :-1], TEXT[:, 1:]
    assert result_of(NAME, Language(), given, loss).status == "pass"
    result = result_of(NAME, Language(mask=False), given, loss)
    assert result.status == "fail" and result.measured > result.threshold
    assert "depends on later tokens, which are its label" in result.message


def test_the_first_module_that_sees_later_tokens_is_named():
    class Layered(nn.Sequential):
        def forward(self, x):
            return super().forward(x).flatten(0, 1)

    torch.manual_seed(0)
    attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = Layered(nn.Embedding(20, 8), nn.Linear(8, 8), attention, nn.Linear(8, 20))
    assert result_of(NAME, model, (TEXT[:, :-1], TEXT[:, 1:]), loss).rows[0].startswith("2.")


def test_a_log_softmax_over_positions_is_found():
    assert result_of(NAME, Language(over=1), (TEXT[:, :-1], TEXT[:, 1:]), loss).status == "fail"


@pytest.mark.parametrize("is_causal", [True, False])
def test_labels_that_are_the_given_tokens_are_a_warning_unless_an_autoencoder_learns_them(is_causal):
    result = result_of(NAME, Language(mask=is_causal), (TEXT, TEXT.clone()), loss)
    if is_causal:
        assert (result.status, result.rows, len(result.next_steps)) == ("warn", ("the model",), 1)
        assert "equal the given tokens of the same positions, because nothing shifts them" in result.message
    else:
        assert result.status == "skip" and "which an autoencoder learns from all of them" in result.message


def test_a_model_that_shifts_its_labels_itself_passes():
    class Shifting(Language):
        def forward(self, x):
            return super().forward(x).view(len(x), -1, 20)[:, :-1].flatten(0, 1)

    result = result_of(NAME, Shifting(), (TEXT, TEXT.clone()), lambda output, target: loss(output, target[:, 1:]))
    assert result.status == "pass"


def test_a_model_that_hides_from_each_output_its_own_token_passes():
    """As masked convolutions over tokens do: the vectors are moved by one position, and the labels are not."""

    class Moving(Language):
        def forward(self, x):
            hidden = F.pad(self.tokens(x)[:, :-1], (0, 0, 1, 0))
            hidden = hidden + F.scaled_dot_product_attention(self.query(hidden), hidden, hidden, is_causal=self.mask)
            return self.head(hidden).flatten(0, 1)

    result = result_of(NAME, Moving(), (TEXT, TEXT.clone()), loss)
    assert (result.status, result.measured) == ("pass", 0.0)
    assert result.message == "no output depends on the token of its own position, or on a later one"


def test_labels_that_are_not_the_next_tokens_are_skipped():
    result = result_of(NAME, Language(mask=False), (TEXT[:, :-1], TEXT[:, 1:].flip(1)), loss)
    assert (result.status, result.message) == ("skip", "the labels are not the tokens of the next positions")
