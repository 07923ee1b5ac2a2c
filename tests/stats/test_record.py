"""What a step logs, in the forms in which it is asked for."""

import numpy as np

from lightning_hooks.stats.record import RolledUp, StepRecord


def test_merged_rows_are_a_mapping_without_a_dictionary_until_one_is_asked_for():
    rows = RolledUp(("grad_norm/a", "grad_norm/b"), np.array([1.0, 2.5]))
    assert len(rows) == 2 and list(rows) == ["grad_norm/a", "grad_norm/b"] and rows._by_tag is None
    assert dict(rows) == {"grad_norm/a": 1.0, "grad_norm/b": 2.5} and "grad_norm/c" not in rows
    assert all(type(number) is float for number in rows.values())


def test_merged_rows_come_from_any_mapping_and_stay_what_they_are():
    record = StepRecord(3, prefix="x/", rolled_up={"grad_norm/a": 1.0}, summaries={"hooks/nonfinite": 0.0})
    assert record.merged.tags == ("grad_norm/a",) and record.merged.numbers.tolist() == [1.0]
    assert record.scalars == {"x/grad_norm/a": 1.0, "x/hooks/nonfinite": 0.0}
    own = RolledUp(("grad_norm/a",), np.array([1.0]))
    assert StepRecord(3, rolled_up=own).merged is own and StepRecord(3).merged is None
