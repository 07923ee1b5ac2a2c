"""Different statistics of the user's with the same name get different tags."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric, Metric

from lightning_hooks import RuleError, StatsMonitor, Watch, instrument


class Power:
    """The sum of a power of the elements. Two objects have the same class and therefore the same name."""

    def __init__(self, exponent):
        self.exponent = exponent

    def __call__(self, tensor):
        return tensor.pow(self.exponent).sum()

    def by_method(self, tensor):
        return self(tensor)


def written(watched):
    return {tag: value for tag, value in watched.latest.items() if not tag.startswith("run/")}


def measured(*rules):
    """The tags and values of one step of a layer that returns (1, 2, 3)."""
    model = nn.Sequential(nn.Identity())
    with instrument(model, [StatsMonitor(rules)]) as watched:
        model(torch.tensor([[1.0, 2.0, 3.0]]))
        watched.step()
    return written(watched)


def named(name):
    def statistic(tensor):
        return tensor.sum() * (1 if name == "f" else 10)

    statistic.__name__ = name.rstrip("!")
    return statistic


def watch(*stats):
    return Watch(modules="0", tensors="output", stats=list(stats))


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (lambda t: t.sum(), lambda t: t.pow(2).sum(), "lambda"),
        (partial(torch.sum), partial(lambda power, t: t.pow(power).sum(), 2), "partial"),
        (Power(1), Power(2), "Power"),
        (Power(1).by_method, Power(2).by_method, "by_method"),
    ],
    ids=["lambdas", "partials", "objects", "methods"],
)
def test_two_statistics_of_one_name_are_numbered_in_the_order_of_the_rules(first, second, name):
    wanted = {f"output_{name}/0": 6.0, f"output_{name}_2/0": 14.0}
    assert measured(watch(first, second)) == wanted
    assert measured(watch(first), watch(second)) == wanted
    # Both rules share the two statistics, although they name them in another order.
    assert measured(watch(first, second), watch(second, first)) == wanted


class Kept(Metric):
    """A metric that keeps all elements until `compute`, as exact quantiles need, and returns their sum."""

    def __init__(self, **options):
        super().__init__(**options)
        self.add_state("seen", [], dist_reduce_fx="cat")

    def update(self, tensor):
        self.seen.append(tensor.flatten())

    def compute(self):
        return torch.cat(self.seen).sum()


def test_in_place_changes_by_the_training_do_not_reach_the_tensors_of_a_metric():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rules = [watch(Kept, torch.sum), Watch(params="*", tensors=["param", "grad"], stats=[Kept, torch.sum])]
    with instrument(model, [StatsMonitor(rules)], optimizer=optimizer) as watched:
        model(torch.randn(8, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    values = written(watched)
    kept = {tag: value for tag, value in values.items() if "_Kept/" in tag}
    assert len(kept) == 5
    assert kept == pytest.approx({tag: values[tag.replace("_Kept/", "_sum/")] for tag in kept})


def test_a_statistic_that_works_in_place_does_not_change_the_training():
    def largest(tensor):
        return tensor.abs_().max()

    assert measured(watch(largest, "min")) == {"output_largest/0": 3.0, "output_min/0": 1.0}
    model, x = nn.Sequential(nn.Identity()), torch.tensor([-3.0, 1.0])
    with instrument(model, [StatsMonitor([watch(largest)])]) as watched:
        model(x)
        watched.step()
    assert written(watched) == {"output_largest/0": 3.0} and x.tolist() == [-3.0, 1.0]


def test_a_statistic_that_works_in_place_does_not_change_other_statistics():
    def emptied(tensor):
        return tensor.zero_().sum()

    model = nn.Sequential(nn.Identity())
    with instrument(model, [StatsMonitor([watch(emptied, torch.sum, Kept)])]) as watched:
        model(torch.tensor([-3.0, 1.0]))
        watched.step()
    assert written(watched) == {"output_emptied/0": 0.0, "output_sum/0": -2.0, "output_Kept/0": -2.0}


def test_the_number_in_a_name_is_the_same_for_all_rows():
    one, other = named("f"), named("f!")
    model = nn.Sequential(nn.Identity(), nn.Identity())
    rules = [Watch(modules=str(i), tensors="output", stats=stat) for i, stat in enumerate((one, other))]
    with instrument(model, [StatsMonitor(rules)]) as watched:
        model(torch.tensor([[1.0, 2.0, 3.0]]))
        watched.step()
    assert written(watched) == {"output_f/0": 6.0, "output_f_2/1": 60.0}


def test_a_numbered_name_that_is_taken_is_skipped():
    tags = measured(watch(named("f"), named("f_2"), named("f!")))
    assert tags == {"output_f/0": 6.0, "output_f_2/0": 60.0, "output_f_3/0": 60.0}


def test_a_method_is_one_statistic_however_often_it_is_asked_for():
    power = Power(2)
    assert measured(watch(power.by_method), watch(power.by_method)) == {"output_by_method/0": 14.0}
    assert measured(watch("torch.sum"), watch(torch.sum)) == {"output_sum/0": 6.0}


def test_two_statistics_of_one_name_get_different_tags_in_groups():
    model = nn.Sequential(nn.Identity(), nn.Identity())
    rule = Watch(modules="*", tensors="output", stats=[lambda t: t.sum(), lambda t: t.pow(2).sum()], group_by={"both": "*"})
    with instrument(model, [StatsMonitor([rule])]) as watched:
        model(torch.tensor([[1.0, 2.0, 3.0]]))
        watched.step()
    assert written(watched) == {"output_lambda/both": 6.0, "output_lambda_2/both": 14.0}


def test_a_name_with_a_slash_would_be_that_of_another_tensor():
    def statistic(tensor):
        return tensor.sum()

    statistic.__name__ = "per/step"
    with pytest.raises(RuleError, match=r"stats\[1\]: the statistic 'per/step' has a slash .* such as 'per_step'"):
        measured(watch("mean", statistic))


class Refuses(MeanMetric):
    """A metric without a value."""

    def compute(self):
        raise ZeroDivisionError("mine")


def test_an_error_names_the_rule_the_statistic_and_the_row():
    wanted = r"^watch\[1\].stats\[1\]: statistic 'relu' of output of 0 returned a tensor of shape \(1, 3\); a scalar is needed$"
    with pytest.raises(RuleError, match=wanted):
        measured(watch("norm"), watch("mean", torch.relu))
    with pytest.raises(ZeroDivisionError, match=r"^mine\nraised in watch\[0\].stats\[0\]: statistic 'Refuses' of output of 0$"):
        measured(watch(Refuses))


def gives(value):
    """A class of metrics whose value is this."""

    class Given(MeanMetric):
        def compute(self):
            return value

    return Given


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None; a real scalar is needed"),
        ("high", "'high'; a real scalar is needed"),
        ({"low": 1.0}, "{'low': 1.0}; a real scalar is needed"),
        (torch.tensor(1j), "a torch.complex64; a real scalar is needed"),
        (torch.ones(2), r"a tensor of shape \(2,\); a scalar is needed"),
    ],
)
def test_a_value_that_is_not_a_scalar_is_refused(value, said):
    for statistic, name in ((lambda tensor: value, "lambda"), (gives(value), "Given")):
        with pytest.raises(RuleError, match=rf"^watch\[0\].stats\[0\]: statistic '{name}' of output of 0 returned {said}$"):
            measured(watch(statistic))


@pytest.mark.parametrize("value", [2, 2.0, True + 1, np.float32(2), np.array([2.0]), torch.tensor([[2]])])
def test_any_real_scalar_serves(value):
    assert measured(watch(lambda tensor: value)) == {"output_lambda/0": 2.0}
    assert measured(watch(gives(value))) == {"output_Given/0": 2.0}


@pytest.mark.parametrize("name", ["norm", "p50", "p95", "p2.5", "count"])
def test_the_name_of_a_built_in_statistic_is_refused(name):
    def statistic(tensor):
        return tensor.sum()

    statistic.__name__ = name
    wanted = (
        rf"^watch\[0\].stats\[1\]: a user's statistic cannot be called '{name}', which is the name of a built-in statistic$"
    )
    with pytest.raises(RuleError, match=wanted):
        measured(watch("mean", statistic))


def test_a_name_that_gives_the_tag_of_another_tensor_is_refused():
    def grad_norm(tensor):
        return tensor.sum()

    rules = [Watch(modules="0", tensors="output_grad", stats="norm"), Watch(modules="*", tensors="output", stats=grad_norm)]
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    with pytest.raises(RuleError) as caught:
        instrument(model, [StatsMonitor(rules)])
    assert str(caught.value) == (
        "watch: 'output_grad_norm/0' would be written twice: it is 'norm' of 'output_grad' and 'grad_norm' of 'output'; watch "
        "one of them, or set the __name__ of your own statistic to another"
    )
    instrument(model, [StatsMonitor([replace(rules[0], modules="1"), replace(rules[1], modules="0")])])


class Experts(nn.Module):
    """The second of two layers gets the elements that are not negative, of which there may be none."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Identity(), nn.Identity()

    def forward(self, x):
        return self.first(x), self.second(x[x >= 0])


def test_an_empty_tensor_does_not_change_a_statistic_and_is_not_given_to_it():
    def largest(tensor):
        # `max` of an empty tensor raises.
        return tensor.max()

    model = Experts()
    rules = [Watch(modules="second", tensors="output", stats=[largest, torch.sum, MeanMetric, "mean"])]
    with instrument(model, [StatsMonitor(rules)]) as watched:
        for batch in ([-1.0, 4.0], [-1.0, -2.0], [2.0, 3.0]):
            model(torch.tensor(batch))
        watched.step()
        wanted = {"largest": (4.0 + 2 * 3.0) / 3, "sum": (4.0 + 2 * 5.0) / 3, "MeanMetric": 3.0, "mean": 3.0}
        assert written(watched) == pytest.approx({f"output_{stat}/second": value for stat, value in wanted.items()})
        model(torch.tensor([-1.0]))
        watched.step()
    assert written(watched) == {}
