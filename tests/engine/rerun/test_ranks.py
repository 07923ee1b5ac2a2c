"""A step that one rank runs alone ends before it waits for other ranks, whatever function of torch exchanges the tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed

from lightning_hooks.engine.rerun.ranks import CommunicationError, WithoutOtherRanks


@pytest.fixture
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


EXCHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "reduce": (lambda: distributed.all_reduce(torch.ones(2)), "c10d.allreduce_"),
    "objects": (lambda: distributed.all_gather_object([None], "a"), "c10d.allgather_"),
    "barrier": (lambda: distributed.barrier(), "c10d.barrier"),
    "broadcast": (lambda: distributed.broadcast(torch.ones(2), 0), "c10d.broadcast_"),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_raises_before_it_begins(group: None, name: str) -> None:
    exchange, said = EXCHANGES[name]
    with pytest.raises(CommunicationError, match=said), WithoutOtherRanks():
        try:
            exchange()
        except Exception:
            pass


def test_an_exchange_in_a_backward_raises_too_and_other_operators_run(group: None) -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda grad: distributed.all_reduce(grad))
    with WithoutOtherRanks():
        loss = (weight * 2).sum()
        with pytest.raises(CommunicationError, match="c10d.allreduce_"):
            loss.backward()
    assert loss.item() == 6 and weight.grad is None
