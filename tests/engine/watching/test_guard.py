"""Guard: what becomes of an error of the work inside."""

import contextlib
import gc
import weakref

import pytest

from lightning_hooks.engine.participants.overhead import Meter
from lightning_hooks.engine.watching.guard import AccountedGuard, Guard


class Owner:
    def __init__(self, *, raises: bool = False) -> None:
        self.raises, self.noted = raises, []
        self.guard = Guard(self.fail, "given")

    def fail(self, error, name):
        self.noted.append((str(error), name))
        if self.raises:
            raise error


def test_an_error_goes_to_the_method_and_work_after_the_guard_goes_on():
    owner = Owner()
    with owner.guard, owner.guard:
        raise ValueError("inside")
    with owner.guard:
        pass
    assert owner.noted == [("inside", "given")]


def test_what_the_method_raises_is_raised_and_an_interrupt_passes_it():
    owner = Owner(raises=True)
    with pytest.raises(ValueError, match="inside"), owner.guard:
        raise ValueError("inside")
    with pytest.raises(KeyboardInterrupt), owner.guard:
        raise KeyboardInterrupt
    assert owner.noted == [("inside", "given")]


def test_an_object_that_keeps_its_guard_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        kept = weakref.ref(Owner())
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("raises", [False, True])
def test_an_account_has_the_time_of_the_work_and_of_handling_its_error(raises):
    now = [0.0]
    meter = Meter(lambda: now[0])

    class Slow(Owner):
        def fail(self, error, name):
            now[0] += 10.0
            super().fail(error, name)

    owner = Slow(raises=raises)
    with contextlib.suppress(ValueError), AccountedGuard(meter.common, owner.guard):
        now[0] += 2.0
        raise ValueError("inside")
    now[0] += 100.0
    assert owner.noted == [("inside", "given")] and meter.common.take() == 12.0
    with AccountedGuard(meter.common, owner.guard):
        now[0] += 1.0
    assert meter.common.take() == 1.0
