import json
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Thread

import pytest
import torch
from torch import nn

from lightning_hooks import Check, RuleError, check
from tests.checks._training import CROSS_ENTROPY, batch, net


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def state(model, optimizer):
    numbers = {name: value.tolist() for name, value in model.state_dict().items()}
    return numbers, [(each.requires_grad, each.grad) for each in model.parameters()], repr(optimizer.state_dict())


def test_everything_is_as_before_after_all_checks():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
    optimizer, given = torch.optim.Adam(model.parameters(), lr=0.1), batch()
    CROSS_ENTROPY(model(given[0]), given[1]).backward()
    optimizer.step()
    model[1].eval()
    before, drawn, modes = repr(state(model, optimizer)), torch.get_rng_state(), [each.training for each in model.modules()]
    grads = [each.grad for each in model.parameters()]
    report = check(model, given, loss=CROSS_ENTROPY, optimizer=optimizer, checks={"OverfitsBatch": True})
    assert len(report) == 24 and report.ok
    assert repr(state(model, optimizer)) == before and torch.get_rng_state().equal(drawn)
    assert [each.training for each in model.modules()] == modes
    assert all(one is other for one, other in zip(grads, (each.grad for each in model.parameters()), strict=True))
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert given[0].equal(batch()[0]) and given[0].grad is None and not given[0].requires_grad


@dataclass(frozen=True, kw_only=True)
class Destroying(Check):
    def run(self, trial):
        with torch.no_grad():
            trial.model[0].weight.zero_()
        trial.model[2] = nn.Identity()
        torch.manual_seed(99)
        return self.passed("all is lost")


@dataclass(frozen=True, kw_only=True)
class WeightsAreThere(Check):
    def run(self, trial):
        return (
            self.passed("yes")
            if trial.model[0].weight.any() and isinstance(trial.model[2], nn.Linear)
            else self.failed([""], "no")
        )


def test_a_check_begins_with_what_the_one_before_found():
    model = net()
    report = check(model, batch(), loss=CROSS_ENTROPY, checks=[Destroying(), WeightsAreThere()])
    assert report["WeightsAreThere"].status == "pass" and isinstance(model[2], nn.Linear)


def test_a_check_that_raises_is_skipped_names_its_error_and_restores_everything():
    @dataclass(frozen=True, kw_only=True)
    class Raising(Check):
        def run(self, trial):
            trial.model.added = 1
            raise ZeroDivisionError("no samples")

    model = net()
    report = check(model, batch(), loss=CROSS_ENTROPY, checks=[Raising(), WeightsAreThere()])
    assert report["Raising"].message == "it could not be judged: ZeroDivisionError: no samples"
    assert report["WeightsAreThere"].status == "pass" and report.ok
    assert not hasattr(model, "added")


def test_a_check_of_ten_lines_says_what_it_finds():
    @dataclass(frozen=True, kw_only=True)
    class OutputIsSmall(Check):
        most: float = 0.01
        probes = ("layers",)

        def run(self, trial):
            large = [each for each in trial.step.layers if each.output_max > self.most]
            if not large:
                return self.passed("no output is large")
            return self.warned([each.name for each in large], "an output is large", large[0].output_max, self.most)

    result = check(net(), batch(), loss=CROSS_ENTROPY, checks=[OutputIsSmall()])["OutputIsSmall"]
    assert (result.status, result.rows, result.threshold) == ("warn", ("0", "1", "2"), 0.01)
    assert check(net(), batch(), loss=CROSS_ENTROPY, checks=[OutputIsSmall(most=99)]).ok


def test_a_check_must_return_a_result():
    @dataclass(frozen=True, kw_only=True)
    class Mute(Check):
        def run(self, trial):
            return True

    with pytest.raises(TypeError, match="Mute.run must return self.passed"):
        check(net(), batch(), loss=CROSS_ENTROPY, checks=[Mute()])


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        for _ in range(10_000):
            time.sleep(0.001)
            x = x + 0
        return self.net(x)


def test_a_step_that_takes_too_long_is_ended_and_is_not_begun_again_for_other_checks():
    began = time.monotonic()
    report = check(Slow(), batch(), loss=CROSS_ENTROPY, time_limit=0.05)
    assert {each.message for each in report if each.check != "FrozenMoves"} >= {
        "it takes longer than 0.05 s",
        "no optimizer was given",
    }
    assert report["StepRuns"].status == "skip" and report.ok and time.monotonic() - began < 60


def test_accepted_rows_are_taken_out_and_a_result_without_rows_passes():
    model = Unused()
    report = check(model, batch(), loss=CROSS_ENTROPY, accept="NoGradient/more.weight")
    result = report["NoGradient"]
    assert (result.status, result.rows, result.fingerprint) == ("fail", ("more.bias",), "NoGradient/more.bias")
    report = check(model, batch(), loss=CROSS_ENTROPY, accept="NoGradient/more.*")
    assert report.ok and report["NoGradient"].message.startswith("accepted: more.weight, more.bias: no gradient")


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.more = net(), nn.Linear(2, 2)

    def forward(self, x):
        return self.net(x)


def test_compiled_modules_run_eagerly_and_the_report_says_so():
    model = torch.compile(net(), backend="eager")
    report = check(model, batch(), loss=CROSS_ENTROPY, optimizer=sgd(model))
    assert report.ok and report.notes == ("compiled modules ran eagerly, so that faults of compiled code do not show",)
    assert "Note: compiled modules ran eagerly" in str(report)
    plain = check(net(), batch(), loss=CROSS_ENTROPY, optimizer=sgd(model))
    assert plain.notes == ()


def test_what_has_no_numbers_is_skipped_as_a_whole():
    report = check(nn.Sequential(nn.LazyLinear(3)), batch(), loss=CROSS_ENTROPY)
    assert {each.message for each in report} == {
        "0.weight has no shape before the first call; call the model once on a batch first"
    }
    report = check(nn.Linear(4, 3, device="meta"), batch(), loss=CROSS_ENTROPY)
    assert report.ok and "weight is on the meta device" in report["StepRuns"].message


def test_several_optimizers_a_closure_and_arguments_by_name():
    model = net()
    both = [torch.optim.LBFGS(model[0].parameters(), max_iter=2), sgd(model[2])]
    assert check(model, batch(), loss=CROSS_ENTROPY, optimizer=both).ok

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, values, labels):
            return {"loss": CROSS_ENTROPY(self.net(values), labels)}

    model = Named()
    assert check(model, dict(zip(("values", "labels"), batch(), strict=True)), optimizer=sgd(model)).ok


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((3, batch()), {}, "the model must be a torch.nn.Module, or the first argument a Trainer, got 3"),
        (
            (net(), torch.ones(2, 4)),
            {"loss": CROSS_ENTROPY},
            r"with loss= the batch must be a pair \(inputs, target\), got Tensor",
        ),
        ((net(), batch()), {"loss": 3}, "loss must be a function, got 3"),
        ((net(), batch()), {"loss": CROSS_ENTROPY, "step": print}, "give either loss=, called as loss"),
        ((net(), batch()), {"optimizer": 3}, "optimizer must be a torch.optim.Optimizer or a list of these, got 3"),
        ((net(), "text"), {}, "the batch holds no tensor, got 'text'"),
        ((net(), batch(), 3), {}, "a third argument belongs to a Trainer"),
        ((net(), batch()), {"loss": CROSS_ENTROPY, "time_limit": 0}, "time_limit must be a number of seconds above 0, got 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, options, said):
    with pytest.raises(RuleError, match=said):
        check(*arguments, **options)


def test_a_model_without_a_loss_is_skipped_with_the_reason():
    report = check(net(), batch()[0])
    assert report.ok and report["StepRuns"].message == "the model returns no loss; give loss= or step="
    assert json.loads(report.to_json())["verdict"] == report.verdict


class Dense(nn.Module):
    """A net on what a function makes of a batch."""

    def __init__(self, dense):
        super().__init__()
        self.net, self.dense = net(), dense

    def forward(self, x):
        return self.net(self.dense(x))


def rows():
    return [row.expand(2 + i % 2, 4).clone() for i, row in enumerate(batch()[0])]


UNUSUAL = {
    "sparse": (lambda: batch()[0].to_sparse(), lambda x: x.to_dense()),
    "compressed": (lambda: batch()[0].to_sparse_csr(), lambda x: x.to_dense()),
    "jagged": (lambda: torch.nested.nested_tensor(rows(), layout=torch.jagged), lambda x: mean_rows(x)),
    "nested": (lambda: torch.nested.nested_tensor(rows()), lambda x: mean_rows(x)),
    "quantized": (lambda: torch.quantize_per_tensor(batch()[0], 0.1, 0, torch.quint8), lambda x: x.dequantize()),
    "complex": (lambda: torch.complex(*[batch()[0]] * 2), lambda x: x.real + x.imag),
    "one byte": (lambda: batch()[0].to(torch.float8_e4m3fn), lambda x: x.float()),
}


def mean_rows(x):
    return torch.stack([row.mean(0) for row in x.unbind()])


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.filterwarnings("ignore")
def test_of_unusual_batches_checks_are_skipped_that_cannot_judge_and_no_others(name):
    make, dense = UNUSUAL[name]
    model = Dense(dense)
    report = check(model, (make(), batch()[1]), loss=CROSS_ENTROPY, optimizer=sgd(model))
    skipped = {each.check: each.message for each in report if each.status == "skip"}
    assert report.ok and not any("could not be judged" in each for each in skipped.values())
    assert set(skipped) <= {"ConstantOutput", "SamplesAreIndependent", "FutureIsHidden"}
    if name not in ("complex", "one byte"):
        kind = "sparse" if name == "compressed" else "nested" if name == "jagged" else name
        assert skipped["ConstantOutput"] == f"batch[0] is a {kind} tensor, of which one sample cannot be told from another"


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, adjacency):
        return torch.sparse.mm(adjacency, self.b(torch.relu(torch.sparse.mm(adjacency, self.a(x)))))


def test_a_graph_with_a_sparse_adjacency_beside_the_batch_is_no_mixing_of_samples():
    adjacency = (torch.eye(12) + torch.eye(12).roll(1, 0)).div(2).to_sparse()
    model = Graph()
    report = check(
        model, batch(), step=lambda model, given: CROSS_ENTROPY(model(given[0], adjacency), given[1]), optimizer=sgd(model)
    )
    assert report.ok and {each.check for each in report if each.status == "skip"} == {"SamplesAreIndependent", "FutureIsHidden"}
    assert report["SamplesAreIndependent"].message.startswith("the model gets a sparse or nested tensor")


class Calling(nn.Module):
    """Calls a function within its forward, as when another thread gets its turn."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 8), nn.Linear(8, 3), between

    def forward(self, x):
        hidden = self.first(x)
        self.between()
        return self.last(hidden)


class Waiting(nn.Module):
    """Says that its forward has begun, and waits until it may end."""

    def __init__(self):
        super().__init__()
        self.begun, self.may_end = Event(), Event()

    def forward(self):
        self.begun.set()
        self.may_end.wait(30)


WAITING = []  # a global variable, because a check restores the variables of closures


def begin_another():
    WAITING.append(Waiting())
    Thread(target=WAITING[-1], daemon=True).start()
    assert WAITING[-1].begun.wait(30)


def test_calls_in_another_thread_are_none_of_the_step():
    def said(between):
        torch.manual_seed(0)
        return str(check(Calling(between), batch(), loss=CROSS_ENTROPY, checks=["NonFinite", "InputNotNormalised"]))

    together = said(begin_another)
    for each in WAITING:
        each.may_end.set()
    assert WAITING and together == said(int)


def test_checks_in_two_threads_say_what_each_says_alone_and_leave_the_process_as_it_was():
    def run(model):
        return str(check(model, batch(samples=model[0].out_features), loss=CROSS_ENTROPY, optimizer=sgd(model)))

    models = [net(width=6), net(width=9)]  # not made in the threads, where a check gives the generators other states
    alone = [*map(run, models)]  # the first imports SymPy, which adds a filter
    filters = list(warnings.filters)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, models))
    assert together == alone and warnings.filters == filters


@dataclass(frozen=True, kw_only=True)
class Reading(Check):
    """Returns the fields that the record of the first step has."""

    probes = ("losses", "grads")

    def run(self, trial):
        return self.passed(" ".join(sorted(name for name in vars(trial.step) if not name.startswith("_"))))


def test_a_step_is_measured_only_by_the_probes_that_checks_register():
    def fields(*checks):
        return check(net(), batch(), loss=CROSS_ENTROPY, checks=[Reading(), *checks])["Reading"].message

    assert fields() == "grads losses" and fields("BiasBeforeNorm") == "grads losses sources"


def test_a_check_that_reads_what_it_does_not_register_is_refused_by_name():
    @dataclass(frozen=True, kw_only=True)
    class Forgetful(Check):
        probes = ("losses",)

        def run(self, trial):
            return self.passed(str(trial.step.layers))

    said = "Forgetful reads 'layers' of a step, which it does not register; add 'layers' to its `probes`"
    with pytest.raises(RuleError, match=said):
        check(net(), batch(), loss=CROSS_ENTROPY, checks=[Forgetful()])


def test_a_probe_that_does_not_exist_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Misspelt(Check):
        probes = ("layer",)

        def run(self, trial):
            return self.passed("")

    with pytest.raises(RuleError, match="Misspelt.probes: there is no probe 'layer' .did you mean 'layers'"):
        check(net(), batch(), loss=CROSS_ENTROPY, checks=[Misspelt()])


def test_what_cannot_be_measured_concerns_only_the_checks_that_read_it():
    class Bytes(nn.Module):
        def forward(self, x):
            return x, x.detach().to(torch.float8_e4m3fn)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.bytes = net(), Bytes()

        def forward(self, x):
            return self.bytes(self.net(x))[0]

    report = check(Model(), batch(), loss=CROSS_ENTROPY, checks=["StepRuns", "InputNotNormalised", "NoGradient"])
    assert [each.status for each in report] == ["pass", "skip", "pass"]
    assert report["InputNotNormalised"].message.startswith("it could not be judged: ")
