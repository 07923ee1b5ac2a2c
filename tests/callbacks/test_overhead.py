"""`run/overhead` and `max_overhead` in a fit, with a clock that goes on only where a test says so."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_hooks import Apply, GradientTransforms, RuleError, StatsMonitor, Transform, Watch
from lightning_hooks.callbacks import _max_overhead
from lightning_hooks.engine.changing.report import Report
from lightning_hooks.engine.participants import overhead
from lightning_hooks.engine.participants.overhead import hook_cost
from tests import late_copies
from tests.callbacks.models import Memory, Net, ValNet, data, trainer_of, watch_fit


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(overhead, "perf_counter", made)
    return made


def timed(kind, clock, seconds=1.0):
    """A model whose step takes so long."""

    class Timed(kind):
        def training_step(self, batch, batch_idx):
            clock.now += seconds
            return super().training_step(batch, batch_idx)

    return Timed()


def costly(clock, seconds):
    def mean_of(tensor):
        clock.now += seconds
        return tensor.mean()

    return mean_of


def param(clock, seconds, **options):
    return Watch(params="body.0.weight", tensors="param", stats=["mean", costly(clock, seconds)], **options)


def test_the_share_of_known_times_with_the_next_watched_step(tmp_path, clock):
    memory, _ = watch_fit(tmp_path, timed(Net, clock), StatsMonitor([param(clock, 0.25)]))
    assert memory.steps_of("run/overhead") == [1, 2, 3, 4, 5]
    assert memory.values("run/overhead") == [0.2] * 5


def test_what_hooks_do_is_counted_in_every_step(tmp_path, clock):
    rule = Watch(modules="body.0", tensors=["output", "output_grad"], stats=["mean", costly(clock, 0.125)])
    memory, _ = watch_fit(tmp_path, timed(Net, clock), StatsMonitor([rule]))
    assert memory.values("run/overhead") == [0.2] * 5


def test_calls_of_hooks_cost_what_torch_takes_for_one(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(_max_overhead, "hook_cost", lambda clock: 0.125)
    rule = Watch(modules=["body.0", "body.3"], tensors=["output", "output_grad"], stats="mean")
    memory, _ = watch_fit(tmp_path, timed(Net, clock), StatsMonitor([rule]))
    assert memory.values("run/overhead") == pytest.approx([4 * 0.125] * 5, abs=0.02)  # the kernel has a clock of its own


@pytest.mark.parametrize("when", ["step", "backward"])
def test_reports_of_transforms_are_counted_and_transforms_are_not(tmp_path, clock, monkeypatch, when):
    real = Report.after

    def slow(self, *args, **options):
        clock.now += 0.25
        return real(self, *args, **options)

    class Slow(Transform):
        def __call__(self, tensors, context):
            clock.now += 0.75
            return [tensor * 1.0 for tensor in tensors]

    monkeypatch.setattr(Report, "after", slow)
    monitor = StatsMonitor([Watch(params="body.0.weight", tensors="param", stats="mean")])
    change = GradientTransforms([Apply(Slow(), params="body.0.weight", when=when)])
    memory = Memory()
    trainer_of(tmp_path, monitor, change, logger=memory).fit(timed(Net, clock), data(6))
    assert memory.values("run/overhead") == [0.125] * 5


@pytest.mark.parametrize("every", [1, 3])
def test_waiting_for_a_device_is_not_counted(tmp_path, clock, monkeypatch, every):
    """The host would wait for it elsewhere: if the device is the bottleneck, the wait is nearly the whole step."""
    late_copies.install(monkeypatch)
    wait = late_copies.LateCopy.wait

    def waits(copy):
        clock.now += 3.0
        return wait(copy)

    monkeypatch.setattr(late_copies.LateCopy, "wait", waits)
    memory, _ = watch_fit(tmp_path, timed(Net, clock), StatsMonitor([param(clock, 1.0)], every_n_steps=every), data(7))
    assert max(memory.values("run/overhead")) <= 1.0 / 2.0


def test_unwatched_steps_count(tmp_path, clock):
    memory, _ = watch_fit(tmp_path, timed(Net, clock), StatsMonitor([param(clock, 1.0)], every_n_steps=3))
    assert memory.steps == [2, 5] and memory.values("run/overhead") == [0.0, 0.25]


def test_a_validation_is_no_part_of_a_step(tmp_path, clock):
    class Validates(ValNet):
        def validation_step(self, batch, batch_idx):
            clock.now += 100.0
            super().validation_step(batch, batch_idx)

    for every, share in ((1, 0.25 / 1.25), (3, 0.25 / 3.25)):
        monitor = StatsMonitor([param(clock, 0.25)], every_n_steps=every)
        model = timed(Validates, clock)
        trainer = trainer_of(tmp_path, monitor, val_check_interval=2)
        trainer.fit(model, data(6), data(1))
        assert monitor.latest["run/overhead"] == share


def test_two_monitors_pay_for_their_own(tmp_path, clock):
    cheap, dear = StatsMonitor([Watch(params="*")], prefix="a/"), StatsMonitor([param(clock, 1.0)], prefix="b/")
    trainer_of(tmp_path, cheap, dear).fit(timed(Net, clock), data(6))
    assert (cheap.latest["run/overhead"], dear.latest["run/overhead"]) == (0.0, 0.5)


def test_of_two_monitors_with_one_prefix_the_first_writes_it(tmp_path, clock):
    cheap, dear = StatsMonitor([Watch(params="body.3.*")]), StatsMonitor([param(clock, 1.0)])
    memory = Memory()
    trainer_of(tmp_path, cheap, dear, logger=memory).fit(timed(Net, clock), data(6))
    assert memory.values("run/overhead") == [0.0] * 5


def test_intervals_widen_until_the_limit_is_kept(tmp_path, clock):
    rules = [param(clock, 0.25), Watch(params="body.3.bias", tensors="param", stats="max", every_n_steps=5)]
    with pytest.warns(UserWarning, match="max_overhead") as caught:
        memory, _ = watch_fit(tmp_path, timed(Net, clock), StatsMonitor(rules, max_overhead=0.1), data(80))
    (said,) = [str(warning.message) for warning in caught if "max_overhead" in str(warning.message)]
    assert "max_overhead=0.1" in said and "every_n_steps goes from 1 to 4" in said
    after = range(10, 80)
    assert memory.steps_of("param_mean/body.0.weight") == [*range(10), *(s for s in after if (s + 1) % 4 == 0)]
    assert memory.steps_of("param_max/body.3.bias") == [4, 9, *(s for s in after if (s + 1) % 20 == 0)]
    assert memory.values("run/overhead")[-1] == pytest.approx(0.25 / 4.25)


def test_without_a_limit_nothing_widens(tmp_path, clock):
    memory, _ = watch_fit(tmp_path, timed(Net, clock), StatsMonitor([param(clock, 5.0)]), data(20))
    assert memory.steps == list(range(20))


def test_it_goes_further_where_that_was_not_enough_and_says_no_more(tmp_path, clock):
    costs = iter([0.25] * 10 + [2.0] * 200)

    def growing(tensor):
        clock.now += next(costs)
        return tensor.mean()

    rule = Watch(params="body.0.weight", tensors="param", stats=["mean", growing])
    with pytest.warns(UserWarning, match="max_overhead") as caught:
        memory, _ = watch_fit(tmp_path, timed(Net, clock), StatsMonitor([rule], max_overhead=0.1), data(200))
    apart = [b - a for a, b in zip(memory.steps, memory.steps[1:], strict=False)]
    assert set(apart[-3:]) == {32}
    assert sum("max_overhead" in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("limit", [0.1, None])
def test_a_run_resumed_keeps_its_intervals_while_there_is_a_limit(tmp_path, clock, limit):
    def saver():
        return ModelCheckpoint(tmp_path, filename="end", every_n_train_steps=12, enable_version_counter=False)

    first, again = (StatsMonitor([param(clock, 0.25)], max_overhead=each) for each in (0.1, limit))
    with pytest.warns(UserWarning, match="from 1 to 4"):
        trainer_of(tmp_path, first, saver(), enable_checkpointing=True).fit(timed(Net, clock), data(12))
    memory = Memory()
    trainer = trainer_of(tmp_path, again, saver(), enable_checkpointing=True, logger=memory, max_epochs=2)
    trainer.fit(timed(Net, clock), data(12), ckpt_path=tmp_path / "end.ckpt")
    assert memory.steps == ([15, 19, 23] if limit else list(range(12, 24)))


@pytest.mark.parametrize("value", [0, 1, -0.1, 5, "5%", True, float("nan")])
def test_a_limit_that_cannot_be_meant(value):
    with pytest.raises(RuleError, match="max_overhead must be a share above 0 and below 1, or None, got"):
        StatsMonitor(max_overhead=value)


def test_repr():
    assert repr(StatsMonitor(max_overhead=0.05)) == "StatsMonitor(max_overhead=0.05)"


def test_measuring_the_cost_of_hooks_draws_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.random.get_rng_state()
    hook_cost(Clock())
    assert torch.equal(torch.random.get_rng_state(), expected)


def test_of_a_list_of_steps_every_second_is_left(tmp_path, clock):
    rule = Watch(params="body.0.weight", tensors="param", stats=["mean", costly(clock, 0.15)])
    with pytest.warns(UserWarning, match="of the 40 steps of every_n_steps 20 are left"):
        memory, _ = watch_fit(
            tmp_path, timed(Net, clock), StatsMonitor([rule], every_n_steps=list(range(40)), max_overhead=0.1), data(40)
        )
    assert memory.steps == [*range(10), *range(11, 40, 2)]
