"""Tensors of hooks that are measured late: several in one launch, and only rows for which that was tried.

The driver is in C, as in test_device_rows.py.
"""

import contextlib
import gc
import re
import warnings
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.hooks import HookSwitch, plain
from lightning_hooks.stats import kernels
from lightning_hooks.stats.schema import COUNT, TRAIL_ENTRY
from lightning_hooks.stats.table import Table
from tests.stats.kernels import stand_in
from tests.stats.kernels.test_device_rows import DTYPES, Adds, Net, fit, normal, same

pytestmark = pytest.mark.skipif(stand_in.missing() is not None, reason=str(stand_in.missing()))
MEGABYTE = 1 << 18  # elements of float32
OVERWRITTEN = "has no value in this step: a tensor was overwritten in place soon after its hook"


@pytest.fixture
def device(monkeypatch):
    """The driver that stands in for that of a device. Gradients and outputs may be late."""
    return stand_in.install(monkeypatch, late=(True, True))


class Rows:
    """A table, and the hooks on gradients and on outputs that write its rows."""

    def __init__(self, rows=2, dtypes=(torch.float32,)):
        switch = HookSwitch()
        switch.is_on = switch.only_loss = True
        self.table = Table(rows, label="output_grad of 'layer {}'".format)
        self.fallback = Adds(self.table)
        self.writes = [self.table.writer(row, self.fallback) for row in range(rows)]
        self.gradient = [plain.GradReader(switch, write) for write in self.writes]
        self._outputs = [plain.PlainHook(switch, set(), write, None, print) for write in self.writes]
        for dtype in dtypes:
            self.writes[0](torch.ones(4, dtype=dtype))  # from Python, which loads the kernels
        self.table.clear()

    def output(self, row, tensor):
        self._outputs[row](nn.Identity(), (), tensor)

    def counts(self):
        return self.table.moments[:, COUNT].tolist()


def tried(rows=2, dtypes=(torch.float32,), **more):
    """Rows for which measuring late was tried and is right."""
    made = Rows(rows, dtypes, **more)
    for row in range(rows):
        made.gradient[row](normal(40, dtype=dtypes[row % len(dtypes)]))
    made.table.exchange()
    made.table.clear()
    return made


def launched(device):
    before, device.launches = device.launches, 0
    return before


def test_eight_gradients_take_one_launch_with_the_bits_of_eight(device):
    made, tensors = tried(9), [normal(900 * size + 1, seed=size) for size in range(9)]
    tensors[3], tensors[6] = torch.arange(3_000_000.0), torch.arange(5_000_000.0)  # of several blocks in a span
    device.from_python.clear()
    launched(device)
    for row in range(8):
        made.gradient[row](tensors[row])
        assert launched(device) == (row == 7)
    made.gradient[8](tensors[8])
    assert launched(device) == 0 and made.table._partial.queue.late() == 1
    late = made.table.moments.tolist()
    assert device.from_python == ["merge_rows"] and launched(device) == 2 and made.fallback.came == 0
    made.table.clear()
    for write, tensor in zip(made.writes, tensors, strict=True):
        write(tensor)
    assert launched(device) == 9 and made.table.moments.tolist() == late


def test_types_are_launched_apart_and_a_row_keeps_the_order_of_its_tensors(device):
    made = tried(4, DTYPES)
    tensors = [normal(50, dtype=DTYPES[i % 4], seed=i) for i in range(12)]
    launched(device)
    for i, tensor in enumerate(tensors):
        made.gradient[i % 4](tensor)
    assert launched(device) == 0
    for tensor in tensors[:4]:
        made.gradient[0](tensor)  # of other types than those that wait
    spans = np.frombuffer(made.table._partial.queue.spans(), dtype=np.int64).reshape(-1, 4)
    assert spans[:, 0].tolist().count(0) == 6
    for row in range(4):
        same(made.table.moments[row], tensors[row::4] + (tensors[:4] if row == 0 else []))


def test_a_row_is_tried_before_it_is_late(device):
    made = Rows(3)
    for step in range(3):
        launched(device)
        for row in range(2):
            made.gradient[row](normal(30, seed=row))
        assert launched(device) == (2, 0, 0)[step], "each tensor is launched in the hook"
        made.table.exchange()
        assert launched(device) == (3, 2, 2)[step], "two trials and a merge, or one launch and a merge"
        assert made.counts() == [30, 30, 0]
        made.table.clear()
    made.gradient[2](normal(30))
    assert launched(device) == 1


def test_a_tensor_that_is_overwritten_without_a_version_is_always_measured_in_the_hook(device):
    made = Rows()
    for step in range(3):
        gradients = [normal(30, seed=row) for row in range(2)]
        launched(device)
        for row, gradient in enumerate(gradients):
            made.gradient[row](gradient)
        assert launched(device) == (2, 1, 1)[step]
        gradients[1].data.mul_(2)  # as a kernel does that torch does not know
        same(made.table.moments[0], gradients[:1])
        same(made.table.moments[1], [gradients[1] / 2])
        made.table.clear()


def test_a_tensor_is_tried_for_as_long_as_it_could_wait(device):
    made = Rows(14, DTYPES[:2])
    for _ in range(3):
        gradients = [normal(30, dtype=DTYPES[row > 0], seed=row) for row in range(14)]
        for row, gradient in enumerate(gradients):
            made.gradient[row](gradient)
        gradients[0].data.mul_(2)  # after thirteen hooks, none of which has a gradient of this type
        same(made.table.moments[0], [gradients[0] / 2])
        made.table.clear()


@pytest.mark.parametrize("value", [0.0, 3.0, torch.nan])
def test_a_tensor_that_cannot_show_an_overwriting_is_always_measured_in_the_hook(device, value):
    made = Rows(1)
    for _ in range(3):
        launched(device)
        made.gradient[0](torch.full((30,), value))
        assert launched(device) == 1
        made.table.exchange()
        made.table.clear()


def test_a_row_that_is_overwritten_in_its_trial_keeps_its_value(device):
    made = Rows()
    for _ in range(3):
        gradients = [normal(30, seed=row) for row in range(2)]
        for row, gradient in enumerate(gradients):
            made.gradient[row](gradient)
        gradients[1].mul_(2)
        same(made.table.moments[1], [gradients[1] / 2])
        made.table.clear()


def test_a_row_that_is_overwritten_later_has_no_value_and_says_so_once(device):
    made = tried()
    gradients = [normal(30, seed=row) for row in range(2)]
    made.writes[1](gradients[0])  # an earlier part of the row
    for row, gradient in enumerate(gradients):
        made.gradient[row](gradient)
    gradients[1].mul_(2)
    with pytest.warns(UserWarning, match="output_grad of 'layer 1' " + re.escape(OVERWRITTEN)) as told:
        assert made.counts() == [30, 0]
    made.writes[1](gradients[0])  # a later part
    made.fallback(1, gradients[0])
    assert len(told) == 1 and made.counts() == [30, 0]
    for _ in range(2):
        made.table.clear()
        launched(device)
        for row, gradient in enumerate(gradients):
            made.gradient[row](gradient)
        gradients[1].mul_(2)
        assert launched(device) == 1 and made.counts() == [30, 30]
        same(made.table.moments[1], [gradients[1] / 2])


def test_memory_that_was_replaced_is_not_read(device):
    made = tried()
    gradient, other = normal(30), normal(30)
    made.gradient[0](gradient)
    made.gradient[1](other)
    gradient.untyped_storage().resize_(0)
    with pytest.warns(UserWarning, match="'layer 0' " + OVERWRITTEN):
        assert made.counts() == [0, 30]


def test_no_more_memory_is_held_than_the_bounds_say(device):
    made = tried(9)
    alive, queue = [], made.table._partial.queue

    def pass_on(row, megabytes):
        gradient = torch.ones(megabytes * MEGABYTE)
        alive.append(weakref.ref(gradient))
        made.gradient[row](gradient)

    held = lambda: [ref() is not None for ref in alive]  # noqa: E731
    pass_on(0, 31)
    pass_on(1, 32)  # large: measured in the hook
    assert held() == [True, False]
    made.table.flush()
    pass_on(2, 31)
    pass_on(3, 31)
    assert held()[2:] == [True, True] and queue.late() == 2
    pass_on(4, 2)
    assert held() == [False] * 5
    for row in range(8):
        pass_on(row, 1)
    assert held() == [False] * 13 and queue.late() == 0
    for release in (made.table.exchange, made.table.clear, lambda: made.table.measure_all([8], [torch.ones(3)])):
        pass_on(0, 1)
        assert held()[-1]
        release()
        assert not held()[-1]


def test_trials_hold_no_more_memory_either(device):
    made, alive = Rows(12), []
    for row in range(12):
        gradient = normal(30, seed=row)
        alive.append(weakref.ref(gradient))
        made.gradient[row](gradient)
        del gradient
        assert sum(ref() is not None for ref in alive) <= 8
    made.table.exchange()
    assert not [ref for ref in alive if ref() is not None]


def test_what_waits_in_a_queue_is_freed_with_it(device):
    made = tried()
    gradient = normal(30)
    freed = weakref.ref(gradient), weakref.ref(made.table._partial)
    made.gradient[0](gradient)
    del made, gradient
    gc.collect()
    assert [ref() for ref in freed] == [None, None]


def test_what_may_not_wait_is_measured_in_the_hook(device, monkeypatch):
    from lightning_hooks.stats.kernels import driver

    made = tried()
    queue = made.table._partial.queue
    with torch.inference_mode():
        untold = normal(30) + 1  # counts no writes
    for tensor in (nn.Parameter(normal(30)), normal(60)[::2], normal(30).as_subclass(nn.Buffer), normal(31)[1:], untold):
        made.gradient[0](tensor)
        assert queue.late() == 0
    made.writes[0](normal(30))  # not from a hook on a gradient
    assert queue.late() == 0 and made.counts() == [180, 0]
    made.gradient[0](normal(30))
    made.gradient[1](torch.ones(0))
    assert queue.late() == 1
    monkeypatch.setattr(driver, "gradients_are_late", False)
    made.table.clear()
    made.gradient[0](normal(30))
    assert queue.late() == 0 and made.counts() == [30, 0]


def test_outputs_wait_apart_from_gradients(device):
    made = Rows(3)
    leaf = torch.ones(30, requires_grad=True)
    for _ in range(2):
        made.table.clear()
        made.output(0, leaf * normal(30))
        made.gradient[1](normal(30))
        made.table.exchange()
    made.table.clear()
    launched(device)
    made.output(0, leaf * normal(30))
    assert launched(device) == 0
    made.gradient[1](normal(30))
    assert launched(device) == 1
    made.output(2, leaf * normal(30))  # is tried
    assert launched(device) == 2 and made.counts() == [30, 30, 30]


@pytest.mark.parametrize("wrong", ["status", "context"])
def test_what_the_driver_does_not_launch_is_measured_from_python(device, wrong):
    made = tried(3)
    made.fallback.trail = kernels.Trail(10, np.arange(3, dtype=np.int32).tobytes())
    made.fallback.calls = 0
    for row in range(3):
        made.gradient[row](normal(30 + row, seed=row))
    setattr(device, wrong, 1)
    device.from_python.clear()
    made.table.flush()
    assert device.from_python == ["measure_one"] * 3 and made.table._partial.queue.late() == 0
    # Where Python cannot launch it either, the fallback measures.
    assert made.fallback.came == (3 if wrong == "status" else 0)
    device.status = 0
    entries = np.frombuffer(made.fallback.trail.entries(0), TRAIL_ENTRY)
    assert made.counts() == [30, 31, 32] and entries["row"].tolist() == [0, 1, 2]
    assert made.fallback.calls == (0 if wrong == "status" else 3)  # a fallback counts what it measures


def test_a_stream_waits_for_another_on_which_tensors_wait(device, monkeypatch):
    from lightning_hooks.stats.kernels import queued_rows

    waited = []
    monkeypatch.setattr(queued_rows, "after", lambda stream, index: waited.append(stream) or contextlib.nullcontext())
    made = tried()
    device.stream = 64
    made.gradient[0](normal(30))
    device.stream = 0
    made.gradient[1](normal(30))  # on another stream than the first: measured by the fallback, after what waits
    assert made.table._partial.queue.late() == 0 and made.fallback.came == 1
    assert made.counts() == [30, 30] and waited[-1] == 64


def test_one_stream_waits_for_another_and_in_return(monkeypatch):
    from lightning_hooks.stats.kernels import launching

    waits = []

    def stream(number):
        return SimpleNamespace(number=number, wait_stream=lambda other: waits.append((number, other.number)))

    monkeypatch.setattr(launching, "current_stream", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream(7))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: stream(0))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda number, device: stream(number))
    for other, want in ((7, []), (9, [(7, 9), "work", (9, 7)]), (0, [(7, 0), "work", (0, 7)])):
        waits.clear()
        with launching.after(other, 0):
            waits.extend(["work"] if want else [])
        assert waits == want


def test_what_waits_is_kept_while_a_graph_is_captured(device):
    made = tried()
    made.gradient[0](normal(30))
    device.capturing = 1
    made.gradient[1](normal(30))
    launched(device)
    made.table.flush()
    assert launched(device) == 0 and made.table._partial.queue.late() == 1
    device.capturing = 0
    assert made.counts()[0] == 30


def test_partial_rows_are_merged_when_tensors_that_wait_need_their_room(device, monkeypatch):
    from lightning_hooks.stats.kernels import cuda

    monkeypatch.setattr(cuda, "_CAPACITY", 6)
    made = tried()
    parts = [normal(4096 * count, seed=count) for count in (2, 3, 2, 6, 1, 7)]
    for part in parts:
        made.gradient[0](part)
    assert made.fallback.came == 1  # the last has more than there is room for
    same(made.table.moments[0], parts)


def test_a_warning_that_is_an_error_is_raised_in_the_hook(device):
    made = tried(9)
    gradients = [normal(30, seed=row) for row in range(8)]
    for row in range(7):
        made.gradient[row](gradients[row])
    gradients[2].add_(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="'layer 2' " + OVERWRITTEN):
            made.gradient[7](gradients[7])
    assert made.counts() == [30, 30, 0, 30, 30, 30, 30, 30, 0]


ACTIONS = st.one_of(
    *[st.tuples(st.sampled_from(["gradient", "gradient", "output", "at once"]), st.integers(0, 5), st.integers(0, 3))] * 3,
    st.tuples(st.sampled_from(["write", "data"]), st.integers(0, 5)),
    st.tuples(st.just("list"), st.integers(0, 5)),
    st.tuples(st.just("stream"), st.sampled_from([0, 0, 64])),
    st.tuples(st.just("status"), st.sampled_from([0, 0, 1])),
    st.tuples(st.just("context"), st.sampled_from([7, 7, 8])),
    st.tuples(st.sampled_from(["flush", "clear", "clear", "rescale", "read"])),
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTIONS, max_size=40))
def test_every_row_has_the_moments_at_the_time_of_its_hooks_or_none(actions):
    """Rows 0 to 3 of two tables; a row that was overwritten before it was measured is absent until the table is cleared."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{OVERWRITTEN}")
        device = stand_in.install(patch, late=(True, True))
        tables = [tried(2, DTYPES[:2]) for _ in range(2)]
        for made in tables:
            made.fallback.came = 0
        sizes = (30, 5, 9000, 64, 4099, 3)
        pool = [normal(size, dtype=DTYPES[i % 2], seed=size).requires_grad_()[:] for i, size in enumerate(sizes)]
        seen, lost = [[] for _ in range(4)], set()
        waiting = [[] for _ in sizes]  # the rows whose tensors may wait, by tensor

        def check():
            for row, tensors in enumerate(seen):
                moments = tables[row // 2].table.moments[row % 2]
                if moments[COUNT] == 0 and row in lost:
                    continue
                assert moments[COUNT] == sum(tensor.numel() for tensor in tensors)
                if tensors:
                    same(moments, tensors)
            forget()

        def forget(rows=range(4)):
            for each in waiting:
                each[:] = [row for row in each if row not in rows]

        for action, *details in actions:
            match action, details:
                case "gradient" | "output" | "at once", [which, row]:
                    made, tensor = tables[row // 2], pool[which]
                    {"gradient": made.gradient, "at once": made.writes}.get(action, [lambda t: None] * 2)[row % 2](tensor)
                    if action == "output":
                        made.output(row % 2, tensor)
                    seen[row].append(tensor.detach().double().clone())
                    waiting[which].append(row)
                case "write", [which]:
                    with torch.no_grad():
                        pool[which].mul_(1.5)
                    lost.update(waiting[which])
                case "data", [which]:
                    if not waiting[which]:  # torch does not count such writes
                        pool[which].data.add_(1)
                case "list", [which]:
                    if device.status == 0:
                        out = Table(1)
                        assert out.measure_all([0], [pool[which].detach()]) == []
                        same(out.moments[0], [pool[which].detach().double()])
                case "stream" | "status" | "context", [value]:
                    setattr(device, action, value)
                case "clear", []:
                    tables[0].table.clear()
                    seen[:2] = [], []
                    lost -= {0, 1}
                    forget((0, 1))
                case "flush", []:
                    for made in tables:
                        made.table.flush()
                    forget()
                case _:
                    device.status = 0
                    if action == "rescale":
                        tables[1].table.rescale([0, 1], torch.tensor(0.5))
                        seen[2:] = [[tensor / 2 for tensor in tensors] for tensors in seen[2:]]
                    check()
        device.status = 0
        check()


def test_fits_have_the_same_bits_and_fewer_launches(monkeypatch):
    found = []
    for late in ((False, False), (True, False), (True, True)):
        with monkeypatch.context() as patch:
            device, launches = stand_in.install(patch, late=late), []
            for steps in (6, 9):
                launched(device)
                values, weights = fit(steps)
                launches.append(launched(device))
            found.append((values, weights, launches[1] - launches[0]))
    assert found[0][0] == found[1][0] == found[2][0]
    assert all(all(map(torch.equal, found[0][1], weights)) for _, weights, _ in found)
    assert found[0][2] > found[1][2] > found[2][2]


class Overwrites(torch.autograd.Function):
    """Writes the gradient of its input into the memory of that of its output, as some kernels do."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient.data.mul_(-1)
        return gradient


class Block(nn.Module):
    def forward(self, x):
        return Overwrites.apply(x)


def test_a_backward_that_overwrites_its_gradient_has_the_numbers_of_its_hooks(device, monkeypatch):
    rule = Watch(modules="*", select="leaves", tensors="output_grad", stats=["mean", "std", "max"])

    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), Block(), nn.Linear(6, 6), Block(), nn.Tanh())
        views = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with instrument(model, [StatsMonitor([rule])], optimizer=optimizer) as watched:
            for step in range(5):
                model(normal(4, 6, seed=step)).square().sum().backward()
                optimizer.step()
                views.append(dict(watched.latest))
        return views

    late = train()
    stand_in.install(monkeypatch, late=(False, False))
    assert train() == late


def test_held_gradients_change_no_accumulation(device):
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias, self.layers = nn.Parameter(torch.zeros(4, 6)), nn.ModuleList(Net().one for _ in range(2))

        def forward(self, x):
            # The gradient of the sum is that of the bias, and is added up for `x`.
            y = nn.Identity()(x + self.bias)
            return (self.layers[0](y) + self.layers[1](y)).sum() + y.square().sum() + (x * y).sum()

    def train(watched):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 6), nn.Identity(), Sums())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        rule = Watch(modules="*", tensors="output_grad", stats=["mean", "std"])
        around = instrument(model, [StatsMonitor([rule])], optimizer=optimizer) if watched else contextlib.nullcontext()
        with around:
            for step in range(5):
                optimizer.zero_grad(set_to_none=False)
                for part in range(2):
                    model(normal(4, 6, seed=2 * step + part)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        return list(model.parameters())

    assert all(map(torch.equal, train(False), train(True)))
