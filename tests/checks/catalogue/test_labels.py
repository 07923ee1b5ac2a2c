import pytest
import torch
from torch.nn import functional as F

from tests.checks._training import batch, net, result_of

NAME = "LabelsVary"
INPUTS, LABELS = batch(samples=24)


@pytest.mark.parametrize(
    ("labels", "outputs", "status", "said"),
    [
        (LABELS, 3, "pass", "the labels of the batch have an entropy of 1.1"),
        (0 * LABELS, 3, "warn", "all 24 labels of the batch are 0"),
        (0 * LABELS, 2, "skip", "all 24 labels are 0, as where one of two classes is rare"),
        (torch.where(LABELS == 0, 0, -100), 3, "pass", "have an entropy of 0"),
    ],
    ids=["balanced", "one", "one of two", "one among a few that count"],
)
def test_labels_of_one_class(labels, outputs, status, said):
    result = result_of(NAME, net(outputs=outputs), (INPUTS, labels))
    assert (result.status, result.rows) == (status, ("2",) if status == "warn" else ()) and said in result.message


def test_labels_of_a_few_samples_may_be_of_one_class_by_chance():
    assert result_of(NAME, net(), (INPUTS[:8], 0 * LABELS[:8])).status == "pass"


def test_labels_of_pixels_and_numbers_are_skipped():
    def pixels(output, target):
        return F.cross_entropy(output[:, :, None].expand(-1, -1, 5), target)

    result = result_of(NAME, net(), (INPUTS, torch.zeros(24, 5, dtype=torch.long)), pixels)
    assert (result.status, result.message) == ("skip", "it is not known which label belongs to which sample")
    result = result_of(NAME, net(), (INPUTS, torch.randn(24, 3)), F.mse_loss)
    assert (result.status, result.message) == ("skip", "the step calls no cross entropy of torch with indices of classes")


def test_labels_that_a_contrastive_loss_makes_itself_are_skipped():
    """The positive pair of each sample comes first, and the labels of the batch are not used."""

    def contrastive(output, target):
        return F.cross_entropy(output, torch.zeros(len(output), dtype=torch.long))

    result = result_of(NAME, net(), (INPUTS, LABELS), contrastive)
    assert (result.status, result.message) == ("skip", "it is not known which label belongs to which sample")
