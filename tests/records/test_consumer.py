import pytest
import torch
from torch import nn

from lightning_hooks import RuleError, RunContext, StatsMonitor, StepConsumer, StepView, Watch, instrument
from lightning_hooks.records.consumer import Publisher, as_consumers


class Notes(StepConsumer):
    def __init__(self, log, name, fails=()):
        self.log, self.name, self.fails = log, name, fails

    def consume(self, view):
        self.log.append((self.name, view.step))
        if view.step in self.fails:
            raise OSError(f"{self.name} at {view.step}")

    def close(self, error):
        self.log.append((self.name, error))
        if "close" in self.fails:
            raise ValueError("too late")


def test_every_consumer_gets_every_view_in_order_even_if_an_earlier_consumer_fails():
    log = []
    publisher = Publisher([Notes(log, "a", [1]), Notes(log, "b", [1]), Notes(log, "c")])
    publisher.publish(StepView(0))
    with pytest.raises(OSError, match="a at 1"):
        publisher.publish(StepView(1))
    publisher.publish(StepView(2))
    assert log == [(name, step) for step in range(3) for name in "abc"]


def test_all_consumers_are_closed_once_and_an_error_of_close_becomes_a_warning():
    log = []
    publisher = Publisher([Notes(log, "a", ["close"]), Notes(log, "b")])
    with pytest.warns(UserWarning, match="^Notes failed when it was closed: ValueError: too late$"):
        publisher.close(None)
    publisher.close(None)
    assert log == [("a", None), ("b", None)]


def test_if_closing_is_interrupted_the_other_consumers_are_closed():
    class Stops(Notes):
        def close(self, error):
            super().close(error)
            raise KeyboardInterrupt(self.name)

    log = []
    publisher = Publisher([Stops(log, "a"), Stops(log, "b"), Notes(log, "c")])
    with pytest.raises(KeyboardInterrupt, match="a"):
        publisher.close(None)
    assert log == [("a", None), ("b", None), ("c", None)]


def test_consumers_that_were_not_started_are_not_closed():
    class Starts(Notes):
        def start(self, rows, run):
            if "start" in self.fails:
                raise ValueError("cannot start")

    log = []
    publisher = Publisher([Starts(log, "a"), Starts(log, "b", ["start"]), Starts(log, "c")])
    with pytest.raises(ValueError, match="cannot start"):
        publisher.start(None, RunContext())
    publisher.close(None)
    assert log == [("a", None)]


def test_the_latest_numbers_need_no_histogram(monkeypatch):
    read = []
    monkeypatch.setattr(StepView, "histogram", lambda view, rows: read.append(rows))
    rule = Watch(modules="0", tensors="output", stats=["mean", "histogram"])
    with instrument(model := nn.Sequential(nn.Identity()), [StatsMonitor([rule])]) as watched:
        model(torch.ones(2))
        watched.step()
    assert watched.latest["output_mean/0"] == 1.0 and not read


def test_an_object_that_is_not_a_consumer_is_refused():
    class Half:
        def consume(self, view): ...

    for wrong, says in [
        ([Half()], r"consumers\[0\] needs the methods start, consume and close; .* has no start"),
        ([Notes([], "a"), print], r"consumers\[1\] needs the methods"),
        ([Notes], r"consumers\[0\] is the class Notes; give an object of it"),
        ([{"class_path": "tests.records.test_consumer.Notes"}], r"consumers\[0\]: .*missing 2 required positional arguments"),
        ([{"class_path": "collections.OrderedDict"}], r"consumers\[0\]: class_path must name a class with the methods start, "),
        ([{"class_path": "os.system", "init_args": {"command": "false"}}], r"close, got 'os.system'$"),
        ([{"class_path": "no.such.Thing"}], r"consumers\[0\]: cannot import 'no.such.Thing'"),
        (Notes([], "a"), "consumers must be a list"),
        ("abc", "consumers must be a list"),
    ]:
        with pytest.raises(RuleError, match=says):
            as_consumers(wrong)
    assert as_consumers(None) == []


def test_a_start_that_does_not_take_the_run_is_refused():
    class Old(StepConsumer):
        def start(self, rows): ...
        def consume(self, view): ...

    with pytest.raises(RuleError, match=r"consumers\[0\].start: .* cannot be called with \(rows, run\); it takes \(rows\)$"):
        as_consumers([Old()])


def test_three_methods_are_enough():
    class Own:
        def start(self, rows, run): ...
        def consume(self, view): ...
        def close(self, error): ...

    assert isinstance(Own(), StepConsumer) and len(as_consumers([Own()])) == 1


def test_start_gets_the_rows_of_the_views():
    class Keeps(StepConsumer):
        def start(self, rows, run):
            self.rows = rows

        def consume(self, view):
            assert view.rows is self.rows

    model, keeps = nn.Sequential(nn.Identity()), Keeps()
    with instrument(model, [StatsMonitor([Watch(modules="0", tensors="output")], consumers=[keeps])]) as watched:
        model(torch.ones(1))
        watched.step()
    assert watched.view.rows is keeps.rows
