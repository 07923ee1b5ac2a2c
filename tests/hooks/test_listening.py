"""A function is wrapped while somebody listens to it, and given back by identity, in whatever order they leave."""

import threading
from types import GeneratorType, SimpleNamespace

import pytest
import torch
from torch import nn

from lightning_hooks.hooks import Handles, Listening, cell_of


def double(value):
    return 2 * value


def given():
    return SimpleNamespace(double=double)


def listening_to(owner, heard, **options):
    listening = Listening(owner, "double", lambda args, kwargs: heard.append(args), **options)
    listening.start()
    return listening


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_listeners_leave_in_any_order(order):
    owner, heard = given(), ([], [])
    both = [listening_to(owner, each) for each in heard]
    assert owner.double(3) == 6
    both[order[0]].remove()
    assert owner.double(4) == 8
    both[order[1]].remove()
    assert owner.double is double
    assert (heard[order[0]], heard[order[1]]) == ([(3,)], [(3,), (4,)])


def test_what_others_wrap_afterwards_stays_and_passes_through_ours():
    owner, heard = given(), []
    listening = listening_to(owner, heard)
    ours = owner.double
    owner.double = lambda value: ours(value) + 1
    theirs = owner.double
    listening.remove()
    assert owner.double is theirs
    assert (owner.double(3), heard) == (7, [])


def test_the_result_is_told_and_a_second_removal_does_nothing():
    owner, results = given(), []
    listening = Listening(owner, "double", lambda args, kwargs: results.append)
    listening.remove()
    listening.start()
    assert owner.double(3) == 6
    listening.remove()
    listening.remove()
    assert (results, owner.double) == ([6], double)


def test_other_threads_are_not_listened_to():
    owner, heard = given(), []
    listening = listening_to(owner, heard)
    thread = threading.Thread(target=owner.double, args=(3,))
    thread.start()
    thread.join()
    listening.remove()
    assert heard == []


def test_an_error_of_the_function_is_raised_as_without():
    owner, heard = given(), []
    listening = listening_to(owner, heard)
    with pytest.raises(TypeError, match="double"):
        owner.double()
    listening.remove()
    assert owner.double is double


def test_iterators_are_read_without_being_used_up():
    heard, kinds = [], []
    owner = SimpleNamespace(double=lambda values, more=(): (kinds.append(type(values)), [*values, *more])[1])
    listening = listening_to(owner, heard, reads_iterators=True)
    assert owner.double((each for each in "ab"), more=iter("c")) == ["a", "b", "c"]
    assert owner.double(["d"]) == ["d"]
    listening.remove()
    assert heard == [(["a", "b"],), (["d"],)]
    assert kinds == [GeneratorType, list]


def test_a_call_is_heard_inside_a_decorator_under_every_name():
    imported, heard, handles = nn.utils.clip_grad_norm_, [], Handles()
    cell, name = cell_of(imported)
    inside = cell.cell_contents
    listening = handles.keep(Listening(cell, name, lambda args, kwargs: heard.append(args), reads_iterators=True))
    listening.start()
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    imported(layer.parameters(), 1.0)
    handles.close()
    assert heard == [([layer.weight, layer.bias], 1.0)]
    assert cell.cell_contents is inside
    assert cell_of(len) is None


def test_compiled_code_calls_the_function_itself():
    heard = []
    listening = Listening(torch.nn.utils.clip_grad, "clip_grad_value_", lambda args, kwargs: heard.append(args))
    listening.start()

    def clip(parameter):
        torch.nn.utils.clip_grad.clip_grad_value_([parameter], 1.0)
        return parameter + 1

    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 3.0)
    torch.compile(clip, backend="eager")(parameter)
    listening.remove()
    assert parameter.grad.tolist() == [1.0, 1.0]
