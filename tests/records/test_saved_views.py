"""Step views in a file are read as they were published: each number bit by bit, facts as one object while they hold."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from lightning_hooks import RuleError
from lightning_hooks.plan.row_index import RequestedRows, RowIndex
from lightning_hooks.records.facts import ModuleFacts, StepFacts, Structure
from lightning_hooks.records.saved_views import read_views, write_views
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.accumulators import BUILT_IN, AccumulatorRows
from lightning_hooks.untrusted import UnreadableError
from tests.damage import damaged

OFTEN, RARELY = EveryN(1), EveryN(10, 5, 95)
PAIRS = next(each for each in BUILT_IN if each.name == "pairs")
INDEX = RowIndex(
    ["a", "a.weight"],
    ["output", "grad"],
    ["Linear", "Linear"],
    order=[0],
    requested_rows=[
        RequestedRows("output", ((OFTEN, ("norm",)), (RARELY, ("std",))), np.array([0])),
        RequestedRows("grad", ((OFTEN, ("norm", "cosine")),), np.array([1])),
    ],
    kept=[AccumulatorRows(PAIRS, (1,))],
)
STRUCTURE = Structure((ModuleFacts("a", "Linear", "linear"),))
FIRST, SECOND = StepFacts(loss_scale=1.0), StepFacts(loss_scale=math.inf, frozen=("a.weight",))


def view(step: int, facts: StepFacts | None, index: RowIndex = INDEX) -> StepView:
    random = np.random.default_rng(step)
    moments = random.standard_normal((len(index), 9))
    moments[0, 2:5] = math.inf, math.nan, -0.0
    return StepView(
        step,
        wall_time=1.7e9 + step / 3,
        rows=index,
        moments=moments,
        summaries={"run/grad_norm": math.inf if step == 2 else 0.1 * step},
        due=frozenset([OFTEN, *([] if step % 2 else [RARELY])] if index is INDEX else []),
        kept={"pairs": random.standard_normal((1, PAIRS.width))} if index is INDEX else {},
        metrics={(0, "mine"): math.nan, (1, "mine"): 3.0} if step else {},
        vectors={(0, "rms"): random.standard_normal(3)} if step == 1 else {},
        ranks=2,
        facts=facts,
        structure=STRUCTURE,
    )


VIEWS = [view(0, None), view(1, FIRST), view(2, FIRST), view(3, SECOND), view(4, None), view(1, FIRST)]


def written(tmp_path: Path, views: list[StepView]) -> list[StepView]:
    path = tmp_path / "fit.views"
    write_views(path, views)
    return read_views(path)


def test_each_number_is_read_bit_by_bit(tmp_path: Path) -> None:
    for before, after in zip(VIEWS, written(tmp_path, VIEWS), strict=True):
        assert (after.step, after.stage, after.wall_time, after.ranks) == (before.step, "train", before.wall_time, 2)
        assert (after.due, after.facts, after.structure) == (before.due, before.facts, STRUCTURE)
        assert after.summaries == before.summaries and repr(after.metrics) == repr(before.metrics)
        for ours, theirs in ((after.moments, before.moments), (after.kept["pairs"], before.kept["pairs"])):
            assert ours.tobytes() == theirs.tobytes() and ours.shape == theirs.shape and not ours.flags.writeable
        assert {key: each.tolist() for key, each in after.vectors.items()} == {
            key: each.tolist() for key, each in before.vectors.items()
        }


def test_rows_and_facts_are_the_same_objects_while_they_hold(tmp_path: Path) -> None:
    read = written(tmp_path, VIEWS)
    assert len({id(each.rows) for each in read}) == 1
    assert read[1].facts is read[2].facts is not read[3].facts
    assert (read[0].rows.names, read[0].rows.order, read[0].rows.tensors) == (INDEX.names, INDEX.order, INDEX.tensors)


def test_rows_may_change_within_a_run(tmp_path: Path) -> None:
    other = RowIndex(["b"], ["grad"], ["Linear"])
    read = written(tmp_path, [*VIEWS[:2], view(5, SECOND, other), *VIEWS[2:4]])
    assert [each.rows.names for each in read] == [INDEX.names] * 2 + [("b",)] + [INDEX.names] * 2
    assert [each.facts for each in read] == [None, FIRST, SECOND, FIRST, SECOND]


def test_no_views_are_a_file_too(tmp_path: Path) -> None:
    assert written(tmp_path, []) == []


def test_views_of_other_schedules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"view of step 0: EveryN\(every=7.*\) is due, and no row has a request at it"):
        write_views(tmp_path / "fit.views", [replace(VIEWS[0], due=frozenset([EveryN(7)]))])


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.views"
    path.write_text("something else")
    with pytest.raises(UnreadableError, match=r"other\.views has no step views of this version"):
        read_views(path)


def _content() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fit.views")
        write_views(path, VIEWS)
        return path.read_bytes()


CONTENT = _content()


@settings(deadline=None, max_examples=60)
@given(content=damaged(CONTENT, is_json=False).filter(lambda content: content != CONTENT))
def test_a_damaged_file_is_one_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fit.views")
        path.write_bytes(content)
        with pytest.raises(UnreadableError, match=r"fit\.views"):
            read_views(path)
