"""The ready-made hooks print, stop and save the right tensors for every kind of hook."""

from __future__ import annotations

import pdb
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import CustomHooks, Hook, instrument
from lightning_hooks.hooks import breakpoint_if_nonfinite, print_shapes, print_stats, save_to
from lightning_hooks.rules import MODULE_KINDS
from tests.engine.user_hooks.modules import Squares


class Model(nn.Module):
    """Three rows of two features to one: y = 1·a + 2·b + 0.5 and its double."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.twice = nn.Linear(2, 1), Twice()
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
            self.layer.bias.fill_(0.5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y: dict[str, Tensor] = self.twice(self.layer(x), by=2.0)
        return y


class Twice(nn.Module):
    def forward(self, x: Tensor, *, by: float) -> dict[str, Tensor]:
        return {"once": x, "twice": x * by}


X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def run(call: Any, kind: str, x: Tensor = X, **where: Any) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with instrument(model, [CustomHooks([Hook(call, kind=kind, **where)])], optimizer=optimizer):
        model(x.clone().requires_grad_())["twice"].sum().backward()
        optimizer.step()


def place(kind: str) -> dict[str, str]:
    if kind.startswith("optimizer"):
        return {}
    return {"modules": "layer"} if kind in MODULE_KINDS else {"params": "layer.weight"}


SHAPES = {
    "forward_pre": "layer forward_pre: input [(3, 2)]",
    "forward": "layer forward: input [(3, 2)], output (3, 1)",
    "full_backward_pre": "layer full_backward_pre: grad_output [(3, 1)]",
    "full_backward": "layer full_backward: grad_input [(3, 2)], grad_output [(3, 1)]",
    "output_grad": "layer output_grad: output_grad (3, 1)",
    "input_grad": "layer input_grad: input_grad (3, 2)",
    "node_pre": "layer node_pre: grad_outputs [(3, 1)]",
    "node": "layer node: grad_inputs [(1,), (3, 2), (2, 1)], grad_outputs [(3, 1)]",
    "param_grad": "layer.weight param_grad: grad (1, 2)",
    "post_accumulate_grad": "layer.weight post_accumulate_grad: param (1, 2)",
}


@pytest.mark.parametrize(("kind", "line"), SHAPES.items())
def test_print_shapes_for_every_kind(capsys: pytest.CaptureFixture[str], kind: str, line: str) -> None:
    run(print_shapes, kind, **place(kind))
    assert capsys.readouterr().out == f"{line}\n"


def test_print_shapes_of_a_nest_and_of_keyword_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    run(print_shapes, "forward", modules="twice")
    run(print_shapes, "forward", modules="twice", with_kwargs=True)
    run(print_shapes, "forward_pre", modules="twice", with_kwargs=True)
    assert capsys.readouterr().out.splitlines() == [
        "twice forward: input [(3, 1)], output [(3, 1), (3, 1)]",
        "twice forward: input [(3, 1)], kwargs [], output [(3, 1), (3, 1)]",
        "twice forward_pre: input [(3, 1)], kwargs []",
    ]


def test_print_shapes_where_an_argument_has_no_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    with instrument(model := Squares(), [CustomHooks([Hook(print_shapes, kind="full_backward", modules="power")])]):
        model(torch.ones(4, requires_grad=True)).sum().backward()
    assert capsys.readouterr().out == "power full_backward: grad_input [(4,), None], grad_output [(4,)]\n"


def test_print_stats(capsys: pytest.CaptureFixture[str]) -> None:
    run(print_stats, "forward", modules="layer")
    run(print_stats, "param_grad", params="layer.weight")
    assert capsys.readouterr().out.splitlines() == [
        # the features: four ones and two zeros; 1.5, 2.5, 3.5
        "layer forward input: shape (3, 2), mean 0.6667, std 0.4714, min 0, max 1, non-finite 0",
        "layer forward output: shape (3, 1), mean 2.5, std 0.8165, min 1.5, max 3.5, non-finite 0",
        "layer.weight param_grad grad: shape (1, 2), mean 4, std 0, min 4, max 4, non-finite 0",
    ]


def test_print_stats_counts_what_is_not_finite_and_knows_empty_and_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_stats("here", torch.tensor([float("nan"), float("inf"), 1.0]), torch.zeros(0, 3), torch.ones(2, dtype=torch.int64))
    assert capsys.readouterr().out.splitlines() == [
        "here  argument 0: shape (3,), mean nan, std nan, min nan, max nan, non-finite 2",
        "here  argument 1: empty (0, 3)",
    ]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_of_nested_tensors_the_elements_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, layout: torch.layout
) -> None:
    parts = [torch.zeros(1, 2), torch.ones(3, 2)]
    with warnings.catch_warnings(action="ignore"):  # torch calls the strided layout a prototype
        nested = torch.nested.nested_tensor(parts, layout=layout)
    shape = r"\(2, j\d+, 2\)" if layout is torch.jagged else r"\(2, …\)"
    print_stats("here", nested)
    print_shapes("here", nested)
    breakpoint_if_nonfinite("here", nested)
    stats, shapes = capsys.readouterr().out.splitlines()
    assert re.fullmatch(f"here  argument 0: shape {shape}, mean 0.75, std 0.433, min 0, max 1, non-finite 0", stats)
    assert re.fullmatch(f"here : argument 0 {shape}", shapes)
    called: list[int] = []
    monkeypatch.setattr(pdb, "set_trace", lambda: called.append(1))
    breakpoint_if_nonfinite("here", nested / 0.0)
    assert called == [1]
    assert re.fullmatch(f"here : argument 0 of shape {shape} holds NaN or infinity\n", capsys.readouterr().out)


KINDS: dict[str, Callable[[], Tensor]] = {
    "coo": lambda: torch.diag(torch.tensor([1.0, 2.0])).to_sparse(),
    "twice at one place": lambda: torch.sparse_coo_tensor([[0, 0, 1], [0, 0, 1]], [0.5, 0.5, 2.0], (2, 2)),
    "csr": lambda: torch.diag(torch.tensor([1.0, 2.0])).to_sparse_csr(),
    "bsc": lambda: torch.diag(torch.tensor([1.0, 2.0])).to_sparse_bsc((1, 1)),
    "mkldnn": lambda: torch.diag(torch.tensor([1.0, 2.0])).to_mkldnn(),
    "float8": lambda: torch.diag(torch.tensor([1.0, 2.0])).to(torch.float8_e5m2),
    "complex": lambda: torch.complex(torch.zeros(2), torch.tensor([-1.0, -2.0])).conj(),
}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*experimental")
@pytest.mark.parametrize("kind", KINDS)
def test_of_every_kind_of_tensor_the_elements_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tensor = KINDS[kind]()
    print_stats("here", tensor)
    shown = f"shape {tuple(tensor.shape)}, mean 0.75, std 0.8292, min 0, max 2, non-finite 0"
    assert capsys.readouterr().out == f"here  argument 0: {shown}\n"
    called: list[int] = []
    monkeypatch.setattr(pdb, "set_trace", lambda: called.append(1))
    breakpoint_if_nonfinite("here", tensor)
    assert not called
    breakpoint_if_nonfinite("here", torch.complex(torch.ones(1), torch.tensor([float("nan")])))
    breakpoint_if_nonfinite("here", torch.tensor([float("inf")]).to_sparse())
    breakpoint_if_nonfinite("here", torch.tensor([float("inf")]).to(torch.float8_e5m2))
    assert called == [1, 1, 1]


def test_a_tensor_without_readable_elements_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    breakpoint_if_nonfinite("here", torch.ones(2, device="meta"))
    print_stats("here", torch.ones(2, device="meta"))
    assert capsys.readouterr().out == "here  argument 0: shape (2,), no readable elements\n"


def test_print_stats_of_half_precision_is_computed_in_double(capsys: pytest.CaptureFixture[str]) -> None:
    print_stats("half", torch.full((4096,), 100.0, dtype=torch.float16))
    assert capsys.readouterr().out == "half  argument 0: shape (4096,), mean 100, std 0, min 100, max 100, non-finite 0\n"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("kind", "label", "shape"),
    [
        ("forward_pre", "input", (3, 2)),
        ("output_grad", None, None),
        ("param_grad", "grad", (1, 2)),
    ],
)
def test_breakpoint_if_nonfinite_stops_where_a_tensor_is_not_finite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: float, kind: str, label: str | None, shape: Any
) -> None:
    stops: list[str] = []
    monkeypatch.setattr(pdb, "set_trace", lambda: stops.append("here"))
    run(breakpoint_if_nonfinite, kind, **place(kind))
    assert stops == []
    x = X.clone()
    x[0, 0] = bad
    run(breakpoint_if_nonfinite, kind, x, **place(kind))
    name = next(iter(place(kind).values()))
    expected = [] if label is None else [f"{name} {kind}: {label} of shape {shape} holds NaN or infinity"]
    assert capsys.readouterr().out.splitlines() == expected
    assert len(stops) == len(expected)


# -- save_to ---------------------------------------------------------------------------------------------------------------

SAVED: list[Any] = [
    ("forward_pre", X),
    ("forward", torch.tensor([[1.5], [2.5], [3.5]])),
    ("full_backward_pre", torch.full((3, 1), 2.0)),
    ("full_backward", torch.tensor([[2.0, 4.0]] * 3)),
    ("output_grad", torch.full((3, 1), 2.0)),
    ("input_grad", torch.tensor([[2.0, 4.0]] * 3)),
    ("node_pre", torch.full((3, 1), 2.0)),
    ("param_grad", torch.tensor([[4.0, 4.0]])),
    ("post_accumulate_grad", torch.tensor([[1.0, 2.0]])),
]


@pytest.mark.parametrize(("kind", "expected"), SAVED, ids=[kind for kind, _ in SAVED])
def test_save_to_keeps_a_detached_copy_by_name(kind: str, expected: Tensor) -> None:
    saved: dict[str, Any] = {}
    run(save_to(saved), kind, **place(kind))
    (name,) = place(kind).values()
    assert list(saved) == [name]
    assert torch.equal(saved[name], expected) and not saved[name].requires_grad


def test_save_to_keeps_several_tensors_as_a_tuple() -> None:
    saved: dict[str, Any] = {}
    run(save_to(saved), "node", modules="layer")
    assert [tuple(tensor.shape) for tensor in saved["layer"]] == [(1,), (3, 2), (2, 1)]
    run(save_to(saved), "forward", modules="twice")
    once, twice = saved["twice"]
    assert torch.equal(twice, 2 * once)


def test_save_to_keeps_the_output_also_where_keyword_arguments_are_given() -> None:
    saved: dict[str, Any] = {}
    run(save_to(saved), "forward", modules="layer", with_kwargs=True)
    assert torch.equal(saved["layer"], torch.tensor([[1.5], [2.5], [3.5]]))


def test_save_to_keeps_the_last_and_is_no_alias() -> None:
    saved: dict[str, Any] = {}
    model = nn.Sequential(nn.Identity())
    x = torch.ones(2)
    with instrument(model, [CustomHooks([Hook(save_to(saved), kind="forward", modules="0")])]):
        model(torch.zeros(2))
        model(x)
    x.zero_()
    assert saved["0"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("call", [print_shapes, print_stats, breakpoint_if_nonfinite, save_to({})], ids=str)
def test_ready_made_calls_say_what_they_are(call: Callable[..., None]) -> None:
    shown = repr(call)
    assert shown in ("print_shapes", "print_stats", "breakpoint_if_nonfinite", "save_to")
    assert call.__doc__
    assert repr(Hook(call, kind="forward", modules="*")) == f"Hook(call={shown}, kind='forward', modules='*')"


@pytest.mark.parametrize("kind", ["optimizer_step_pre", "optimizer_step_post"])
def test_print_shapes_around_an_optimizers_step(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    run(print_shapes, kind)
    assert capsys.readouterr().out.startswith(f"hooks[0] {kind}: ")
