"""A step from a filled template is the message that would have been built."""

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from lightning_hooks import backends
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.stats.histogram import bucket_edges
from lightning_hooks.tensorboard import events
from lightning_hooks.tensorboard.events import EventBuilder
from lightning_hooks.tensorboard.histograms import histogram_bytes, histogram_proto
from lightning_hooks.tensorboard.messages import event_bytes, varint

from .records import record


def steady(steps, **options):
    """In full and rolled up by turns."""
    for step in range(steps):
        yield record(step, merged={"grad_norm/all": step / 3} if step % 2 else None, **options)


needs_templates = pytest.mark.skipif(backends.events().module is None, reason="nothing is compiled")


@pytest.mark.parametrize("histograms", [False, True])
def test_a_filled_template_is_the_message(histograms):
    builder, plain = EventBuilder(), EventBuilder()
    for step in steady(6, histograms=histograms):
        filled, built = Summary.FromString(builder.serialized(step)), plain.summary(step)
        # NaN is not equal to itself, so bytes are compared.
        assert filled.SerializeToString(deterministic=True) == built.SerializeToString(deterministic=True)


@needs_templates
def test_messages_are_built_for_the_first_step_of_a_kind_only(monkeypatch):
    builder, built = EventBuilder(), []
    whole = EventBuilder.summary
    monkeypatch.setattr(EventBuilder, "summary", lambda self, step: built.append(step.step) or whole(self, step))
    for step in steady(10):
        builder.serialized(step)
    assert built == [0, 1]  # in full, and rolled up


@needs_templates
def test_templates_do_not_pile_up_where_what_is_measured_changes(monkeypatch):
    monkeypatch.setattr(events, "_TEMPLATES", 2)
    builder = EventBuilder()
    for step in steady(8):
        step.measured[0] = step.step % 3 == 0
        builder.serialized(step)
    assert len(builder._templates) <= 2


@needs_templates
def test_merged_rows_share_a_template_by_what_their_tags_say(monkeypatch):
    monkeypatch.setattr(events, "_TEMPLATES", 3)
    builder, plain, built = EventBuilder(), EventBuilder(), []
    whole = EventBuilder.summary
    monkeypatch.setattr(EventBuilder, "summary", lambda self, step: built.append(step.step) or whole(self, step))
    for number in range(24):  # tags made again at every step, as where not every row has elements
        tags = tuple(f"grad_norm/{number % 2}.{row}" for row in range(3))
        step = LogEntry(number, merged=(tags, np.arange(3.0) + number))
        assert builder.serialized(step) == whole(plain, step).SerializeToString()
    assert built == [0, 1]
    for number in range(24, 48):  # and now at every step others, so that what is kept is thrown away again and again
        step = LogEntry(number, merged=((f"grad_norm/{number // 2 * 2 % 16}",), np.array([float(number)])))
        assert builder.serialized(step) == whole(plain, step).SerializeToString()
    assert len(builder._templates) <= 3


def test_an_event_is_what_protobuf_would_write():
    summary = Summary(value=[Summary.Value(tag="a", simple_value=2.0)])
    for step in (0, 1, 127, 128, 300_000, 2**40):
        event = Event.FromString(event_bytes(1.5, step, summary.SerializeToString()))
        assert (event.wall_time, event.step, event.summary) == (1.5, step, summary)
    assert varint(0) == b"\0"


def test_values_beyond_float32_are_infinite_in_a_template_too():
    builder = EventBuilder()
    for step in steady(4):
        step.values[0] = 1e300
        found = Summary.FromString(builder.serialized(step)).value
        vector = next(value for value in found if value.tag.startswith("table/grad/norm"))
        assert np.frombuffer(vector.tensor.tensor_content, dtype="<f4")[0] == np.inf


def test_a_histogram_without_counts_is_still_written():
    builder = EventBuilder()
    for step in steady(4, histograms=True):
        step.histogram_counts[0] = 0.0
        found = Summary.FromString(builder.serialized(step)).value
        assert [value.histo.num for value in found if value.HasField("histo")] == [0.0]


@pytest.mark.parametrize("serves", ["chosen", "tensorboard"])
def test_many_histograms_are_the_messages(serves, monkeypatch):
    if serves == "tensorboard":
        monkeypatch.setattr(backends, "events", lambda: backends.Decision("tensorboard", "for a test"))
    rng = np.random.default_rng(0)
    tags = [f"grad_histogram/schön {number}" + number * "." for number in range(140)]
    drawn = np.zeros((len(tags), 509))
    for counts in drawn[1:]:
        places = rng.integers(0, 509, rng.integers(0, 60))
        counts[places] = rng.integers(1, 1000, len(places))
    drawn[1, :2], drawn[2, -1], drawn[3, 254] = 1, 2, 3
    limits = bucket_edges()[1:]
    for value, tag, counts in zip(Summary.FromString(histogram_bytes(tags, drawn, limits)).value, tags, drawn, strict=True):
        wanted = histogram_proto(counts, limits)
        assert value.tag == tag
        assert list(value.histo.bucket_limit) == list(wanted.bucket_limit)
        assert list(value.histo.bucket) == list(wanted.bucket)
        for number in ("min", "max", "num"):
            assert getattr(value.histo, number) == getattr(wanted, number)
        scale = (counts * np.abs(limits)).sum()  # numbers of both signs may cancel
        assert value.histo.sum == pytest.approx(wanted.sum, rel=1e-12, abs=1e-12 * scale)
        assert value.histo.sum_squares == pytest.approx(wanted.sum_squares, rel=1e-12)


@needs_templates
def test_histograms_that_do_not_fit_are_refused():
    draw = backends.events().module.draw
    with pytest.raises(ValueError, match="a count for each bucket of each tag"):
        draw(["a"], np.zeros((2, 3)), np.zeros(3))
    with pytest.raises(TypeError, match="tags, counts, and edges"):
        draw(["a"])
    with pytest.raises(TypeError, match="bad argument type"):
        draw([1], np.zeros((1, 3)), np.zeros(3))
