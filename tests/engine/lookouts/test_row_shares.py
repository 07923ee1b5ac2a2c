"""What the norms of rows show, in words: few rows that stand out, rows that are not finite, or a spread."""

import numpy as np
import pytest

from lightning_hooks.engine.lookouts.row_shares import Part, Rows


def norms(count=32, **rows):
    values = np.ones(count)
    for row, norm in rows.items():
        values[int(row[1:])] = norm
    return values


def said(*parts):
    return Rows(41, "head", [part if isinstance(part, Part) else Part(part) for part in parts]).text()


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([norms(r7=20.0)], "row 7 of the 32 in the batch of step 41 holds 93 % of the squared gradient at head"),
        (
            [Part(norms(256, r17=40.0, r203=30.0), samples=range(5000, 5256))],
            "rows 17 and 203 of the 256 in the batch of step 41 (samples 5017 and 5203) hold 91 % of the squared gradient "
            "at head",
        ),
        ([norms(r3=1e4)], "row 3 of the 32 in the batch of step 41 holds more than 99 % of the squared gradient at head"),
        (
            [norms(16), norms(16, r5=20.0)],
            "row 5 of batch 1 of the 32 in the 2 batches of step 41 holds 93 % of the squared gradient at head",
        ),
        (
            [norms()],
            "the gradient at head is spread over the batch of step 41: 16 of its 32 rows hold half of the squared gradient",
        ),
        ([norms(r4=np.nan)], "the gradient at head is not finite in row 4 of the 32 in the batch of step 41"),
        (
            [Part(norms(r4=np.inf), bad_inputs=np.arange(32) == 4)],
            "the gradient at head is not finite in row 4 of the 32 in the batch of step 41, where the batch itself is not "
            "finite either",
        ),
        (
            [Part(norms() * np.nan, bad_inputs=np.arange(32) == 4)],
            "the gradient at head is finite in none of the 32 rows of the batch of step 41, and the batch itself is not finite "
            "in row 4",
        ),
        ([norms(4)], ""),
        ([norms(4, r1=1.5)], ""),
        ([norms(2, r1=9.0)], ""),
        ([np.zeros(32)], ""),
    ],
)
def test_rows_are_told_in_words(parts, text):
    assert said(*parts) == text


@pytest.mark.parametrize(("count", "few"), [(8, 1), (16, 2), (32, 3), (100, 5)])
def test_few_rows_are_a_small_share_of_the_batch(count, few):
    def standing_out(number):
        values = np.full(count, 1e-3)
        values[:number] = 1.0
        return Rows(0, "head", [Part(values)]).standing_out()[0]

    assert standing_out(few) == list(range(few))
    # Half of the squared norm is then in more rows than are few.
    assert standing_out(2 * few) == []
