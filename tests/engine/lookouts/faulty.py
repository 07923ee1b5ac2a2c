"""A training with faults of its data and of its teacher, for tests of each way to train."""

import torch
from torch import nn

STEPS, BATCH, COLUMNS, UNITS = 60, 32, 6, 8
EMPTY = (52, 54)
"""The batches that are all zeros, after the columns have been judged."""
FOUND = {
    "BatchOfZeros": ("student.0",),
    "InputColumnConstant": ("student.0", "teacher.0"),
    "InputColumnScale": ("student.0", "teacher.0"),
    "TeacherTrained": ("teacher",),
}
"""What is said of the training, wherever it runs: {rule: rows}."""


class Faulty(nn.Module):
    """A student and a teacher in evaluation mode that the optimizer of the student trains too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Sequential(nn.Linear(COLUMNS, UNITS), nn.ReLU(), nn.Dropout(0.1), nn.Linear(UNITS, 1))
        self.teacher = nn.Sequential(nn.Linear(COLUMNS, UNITS), nn.Linear(UNITS, 1))

    def forward(self, x, labels=None):
        return {"loss": (self.student(x) - self.teacher.eval()(x)).square().mean()}


def faulty_batch(number, seed=0):
    """Samples with a column of ones and one that is thousands of times the others, or a batch of zeros."""
    x = torch.randn(BATCH, COLUMNS, generator=torch.Generator().manual_seed(1000 * seed + number))
    x[:, 1] = 1.0
    x[:, 5] *= 5000
    return torch.zeros_like(x) if number in EMPTY else x
