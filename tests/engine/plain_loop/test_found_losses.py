"""The loss of a plain loop is the tensor whose backward pass reaches the model; what the loop itself notes goes before it."""

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, instrument, paused

RULES = [{"params": "*", "stats": "norm"}]


class Scaler(torch.amp.GradScaler):
    """A loss scaler with a method of its own, as that of sharded training has."""

    def scale(self, outputs):
        return outputs * 512.0


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def measured(backward, steps=3):
    """The losses that a step made, and `run/loss` of each step.

    Args:
        backward: called with the `Instrument`, a function that makes a loss, and the number of the step; runs its backward.
        steps: how many.
    """
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    made, means = [], []

    def loss():
        value = model(torch.randn(8, 4)).square().mean()
        made[-1].append(value.item())
        return value

    with instrument(model, [StatsMonitor(RULES)], optimizer=optimizer) as watched:
        for step in range(steps):
            made.append([])
            optimizer.zero_grad()
            backward(watched, loss, step)
            optimizer.step()
            means.append(watched.latest.get("run/loss"))
    return made, means


def mean(values):
    return pytest.approx(sum(values) / len(values), rel=1e-6)


def scaled(scaler):
    def backward(watched, loss, step):
        scaler.scale(loss()).backward()

    return backward


def accumulated(divide):
    def backward(watched, loss, step):
        for _ in range(4):
            divide(loss()).backward()

    return backward


FOUND = {
    "backward": lambda watched, loss, step: loss().backward(),
    "torch.autograd.backward": lambda watched, loss, step: torch.autograd.backward(tensors=[loss()]),
    "loss scaler": scaled(torch.amp.GradScaler("cpu", init_scale=1024.0)),
    "loss scaler of one's own": scaled(Scaler("cpu")),
    "several backward passes": accumulated(lambda loss: loss),
    "accumulation": accumulated(lambda loss: loss / 4),
    "accumulation by a factor": accumulated(lambda loss: 0.25 * loss),
    "noted": lambda watched, loss, step: (watched.note_loss(value := loss()), value.backward()),
    "noted without its graph": lambda watched, loss, step: (watched.note_loss((value := loss()).detach()), value.backward()),
    "noted after the backward pass": lambda watched, loss, step: ((value := loss()).backward(), watched.note_loss(value)),
    "of the parameters alone": lambda watched, loss, step: loss().backward(inputs=list(watched.model[2].parameters())),
}


@pytest.mark.parametrize("backward", FOUND.values(), ids=FOUND)
def test_the_mean_of_a_step_is_that_of_its_losses(backward):
    made, means = measured(backward)
    assert means == [mean(each) for each in made]


def test_a_division_by_another_number_than_that_of_the_batches_stays():
    made, means = measured(lambda watched, loss, step: (loss() / 3).backward())
    assert means == [mean([value / 3 for value in each]) for each in made]


def test_a_loss_that_the_loop_notes_takes_the_place_of_what_is_found():
    def backward(watched, loss, step):
        value = loss()
        if step == 1:
            watched.note_loss(value * 100)
        value.backward()

    made, means = measured(backward)
    assert means == [mean([value * (100 if step == 1 else 1) for value in each]) for step, each in enumerate(made)]


def suspended(watched, loss, step):
    watched.suspend()
    loss().backward()
    watched.resume()


def in_a_pause(watched, loss, step):
    with paused(watched.model):
        loss().backward()


def in_a_thread(watched, loss, step):
    thread = threading.Thread(target=lambda: loss().backward())
    thread.start()
    thread.join()


NOT_FOUND = {
    "another model": lambda watched, loss, step: model_of()(torch.randn(8, 4)).mean().backward(),
    "given gradient": lambda watched, loss, step: loss().backward(torch.ones(())),
    "of an input alone": lambda watched, loss, step: (x := torch.ones(8, 4, requires_grad=True)).sum().backward(inputs=[x]),
    "several elements": lambda watched, loss, step: (out := watched.model(torch.randn(8, 4))).backward(out.detach()),
    "torch.autograd.grad": lambda watched, loss, step: torch.autograd.grad(loss(), [*watched.model.parameters()]),
    "suspended": suspended,
    "in a pause": in_a_pause,
    "in another thread": in_a_thread,
}


@pytest.mark.parametrize("backward", NOT_FOUND.values(), ids=NOT_FOUND)
def test_what_is_not_the_loss_of_the_model_is_not_measured(backward):
    assert measured(backward)[1] == [None] * 3


def test_a_discriminator_that_is_not_watched_is_no_part_of_the_loss():
    discriminator = nn.Linear(1, 1)

    def backward(watched, loss, step):
        discriminator(watched.model(torch.randn(8, 4)).detach()).mean().backward()
        loss().backward()

    made, means = measured(backward)
    assert means == [mean(each) for each in made]


def test_weights_and_random_numbers_are_those_of_an_unwatched_loop():
    def train(model, watching):
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        torch.manual_seed(1)
        with instrument(model, [StatsMonitor(RULES)], optimizer=optimizer) if watching else nullcontext():
            for _ in range(5):
                optimizer.zero_grad()
                for _ in range(2):
                    (model(torch.randn(8, 4)).square().mean() / 2).backward()
                optimizer.step()
        return torch.get_rng_state()

    plain, watched = model_of(), model_of()
    state = train(plain, watching=False)
    train(watched, watching=True)
    assert torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))


def functions():
    return [torch.autograd.backward, torch.amp.GradScaler.scale, Scaler.scale]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_functions_of_torch_are_given_back(error):
    before, model = functions(), model_of()
    with pytest.raises(error) if error else pytest.MonkeyPatch.context(), instrument(model, [StatsMonitor(RULES)]):
        assert not any(now is then for now, then in zip(functions(), before, strict=True))
        if error:
            raise error
    assert all(now is then for now, then in zip(functions(), before, strict=True))


def test_blocks_may_end_in_any_order():
    before, models = functions(), [model_of(), model_of()]
    first, second = (instrument(model, [StatsMonitor(RULES)]).__enter__() for model in models)
    first.__exit__(None, None, None)
    models[1](torch.ones(1, 4)).sum().mul(0).add(3).backward()
    second.step()
    assert second.latest["run/loss"] == 3.0
    second.__exit__(None, None, None)
    assert all(now is then for now, then in zip(functions(), before, strict=True))


def test_a_wrapper_of_somebody_else_stays(monkeypatch):
    calls = []
    with instrument(model_of(), [StatsMonitor(RULES)]):
        ours = torch.autograd.backward

        def theirs(*args, **kwargs):
            calls.append(1)
            return ours(*args, **kwargs)

        monkeypatch.setattr(torch.autograd, "backward", theirs)
    assert torch.autograd.backward is theirs
    model = model_of()
    with instrument(model, [StatsMonitor(RULES)]) as watched:
        model(torch.ones(1, 4)).sum().mul(0).add(3).backward()
        watched.step()
        assert watched.latest["run/loss"] == 3.0
    model(torch.ones(1, 4)).sum().backward()
    assert calls == [1, 1] and torch.autograd.backward is theirs
