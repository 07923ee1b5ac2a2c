"""The report of a transform, compared with sums in float64 over the tensors before and after."""

import math

import pytest
import torch

from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Transform, Watch
from lightning_hooks.engine.changing.report import Report, keeps_direction
from lightning_hooks.tensor_kinds import elements
from lightning_hooks.transforms import ClipByGlobalNorm, Context, NormalizeByNorm, Scale
from tests.callbacks.models import Memory, Net, data, trainer_of
from tests.transforms._catalogue import EXAMPLES, label


def normal(*shape, seed=0, dtype=torch.float32, size=1.0):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn * size).to(dtype)


def reported(before, after, *, keeps=False, owned=False):
    report = Report(keeps)
    report.begin()
    given = [tensor.clone() for tensor in before]
    noted = report.before(given, owned=owned)
    if owned:
        for tensor, new in zip(given, after, strict=True):
            tensor.copy_(new)
        after = given
    report.after(noted, after)
    return report.finish()


def expected(before, after):
    old, new = (torch.cat([elements(t)[0].flatten().double() for t in each]) for each in (before, after))
    return {
        "norm_before": old.norm().item(),
        "norm_after": new.norm().item(),
        "acted": float(not torch.equal(old, new)),
        "cosine": (torch.dot(old, new) / (old.norm() * new.norm())).item(),
    }


SHAPES = [(3,), (256, 256), (), (0,), (64, 3, 3, 3)]


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_numbers_are_those_of_float64(dtype, owned):
    before = [normal(*shape, seed=i, dtype=torch.float32).to(dtype) for i, shape in enumerate(SHAPES)]
    after = [tensor + 0.3 * normal(*tensor.shape, seed=9).to(dtype) for tensor in before]
    assert reported(before, after, owned=owned) == pytest.approx(expected(before, after), rel=1e-6)


@pytest.mark.parametrize("sizes", [(1.0, 1.0), (1e-3, 1e3), (1e-30, 1.0), (1e-30, 1e-30), (1e25, 1e25)], ids=str)
def test_products_are_those_of_float64_whatever_the_size_of_the_tensors(sizes):
    before = [normal(7, i, seed=i, size=sizes[0] * (1 + i % 3)) for i in range(30)]
    after = [normal(7, i, seed=100 + i, size=sizes[1] * (1 + i % 2)) + tensor for i, tensor in enumerate(before)]
    after[4:20:4] = before[4:20:4]  # Leave some tensors unchanged.
    assert reported(before, after) == pytest.approx(expected(before, after), rel=1e-6)
    assert reported(before, before) == pytest.approx(expected(before, before), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e15])
def test_a_direction_that_is_kept_gives_the_same_numbers(dtype, size):
    if dtype in (torch.float16, torch.complex64):
        size = 1.0
    before = [normal(*shape, seed=i, size=size).to(dtype) for i, shape in enumerate(SHAPES)]
    after = [tensor * factor for tensor, factor in zip(before, [0.5, 0.1, 3.0, 1.0, 1.0], strict=True)]
    assert reported(before, after, keeps=True, owned=True) == pytest.approx(expected(before, after), rel=1e-6)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("owned", [True, False])
def test_what_is_left_as_it_is_was_not_acted_on(keeps, owned):
    before = [normal(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    before[0][1] = math.nan
    assert reported(before, [tensor.clone() for tensor in before], keeps=keeps, owned=owned)["acted"] == 0.0


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1 / 3).expand(100),
        normal(33, 1).expand(33, 17),
        torch.complex(normal(64, 33), normal(64, 33, seed=1)).conj().imag,
    ],
    ids=["one element", "one column", "of a conjugate"],
)
def test_a_copy_with_another_memory_layout_is_no_change(tensor, keeps):
    report = Report(keeps)
    report.begin()
    report.after(report.before([tensor], owned=False), [tensor * 1.0])
    assert report.finish()["acted"] == 0.0


def test_the_imaginary_part_of_a_conjugate_is_measured_in_float64():
    tensor = torch.complex(normal(9), normal(9, seed=1, size=1e25)).conj().imag
    assert reported([tensor], [tensor])["norm_before"] == pytest.approx(tensor.double().norm().item(), rel=1e-6)


def test_a_change_that_keeps_every_moment_is_seen():
    before = [torch.tensor([1.0, 2.0, 3.0])]
    found = reported(before, [torch.tensor([3.0, 2.0, 1.0])])
    assert found["acted"] == 1.0 and found["cosine"] == pytest.approx(10 / 14)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_norms_of_what_is_not_finite(keeps, bad):
    before, after = [torch.tensor([1.0, bad]), torch.ones(2)], [torch.tensor([1.0, 2.0]), torch.full((2,), math.nan)]
    found = reported(before, after, keeps=keeps)
    assert found["norm_before"] == pytest.approx(abs(bad), nan_ok=True) and math.isnan(found["norm_after"])
    assert found["acted"] == 1.0 and "cosine" not in found


def test_a_norm_of_zero_has_no_cosine():
    assert reported([torch.ones(2)], [torch.zeros(2)], keeps=True) == {
        "norm_before": pytest.approx(2**0.5),
        "norm_after": 0.0,
        "acted": 1.0,
    }


@pytest.mark.parametrize("keeps", [True, False])
def test_sparse_gradients(keeps):
    before = torch.sparse_coo_tensor([[0, 2, 0]], [1.0, 2.0, 3.0], (4,), check_invariants=True)
    found = reported([before], [before * 0.5], keeps=keeps)
    assert found["norm_before"] == pytest.approx(20**0.5) and found["norm_after"] == pytest.approx(5**0.5)
    assert found["cosine"] == pytest.approx(1.0) and found["acted"] == 1.0
    fewer = torch.sparse_coo_tensor([[2]], [2.0], (4,), check_invariants=True)
    assert reported([before], [fewer])["cosine"] == pytest.approx(2 / 20**0.5)


def test_a_sparse_gradient_with_as_many_elements_at_other_places():
    before, moved = (torch.sparse_coo_tensor([at], [1.0, 2.0], (4,), check_invariants=True) for at in ([0, 2], [1, 2]))
    found = reported([before], [moved])
    assert found["cosine"] == pytest.approx(4 / 5) and found["acted"] == 1.0


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_gradients_by_rows():
    rows = torch.eye(3).to_sparse_csr()
    found = reported([rows], [rows * 2.0])
    assert found["norm_after"] == pytest.approx(12**0.5) and found["acted"] == 1.0


@pytest.mark.parametrize("transform", [each for each in EXAMPLES if each.keeps_direction], ids=label)
def test_what_says_that_it_keeps_the_direction_does(transform):
    given = [normal(6, 4, seed=i, size=10.0**i) for i in range(3)]
    params = [normal(6, 4, seed=10 + i) for i in range(3)]
    context = Context(params=params, names=["a.x", "a.y", "b.x"], state=transform.initial_state(), step=3)
    results = transform([tensor.clone() for tensor in given], context)
    for old, new in zip(given, results, strict=True):
        assert torch.dot(old.flatten(), new.flatten()) == pytest.approx((old.norm() * new.norm()).item(), rel=1e-5)


@pytest.mark.parametrize("factor", [0.25, 1.0, 0.0, math.nan])
def test_a_known_factor_gives_the_same_report(factor):
    before = [normal(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    read, known = Report(True), Report(True)
    for report, told in ((read, None), (known, torch.tensor(factor))):
        report.begin()
        report.after(report.before(before, owned=False), [tensor * factor for tensor in before], factor=told)
    assert known.finish() == pytest.approx(read.finish(), rel=1e-6, nan_ok=True)


def test_a_subclass_that_calculates_something_else_is_not_taken_to_keep_the_direction():
    class Turns(ClipByGlobalNorm):
        def __call__(self, tensors, context):
            return [-tensor for tensor in super().__call__(tensors, context)]

    class Renamed(ClipByGlobalNorm):
        pass

    assert keeps_direction(Renamed(1.0)) and not keeps_direction(Turns(1.0)) and not keeps_direction(abs)


def test_a_negative_factor_turns_the_direction():
    assert keeps_direction(Scale(0.0)) and keeps_direction(NormalizeByNorm())
    assert not keeps_direction(Scale(-1.0)) and not keeps_direction(NormalizeByNorm(scale=-1.0))


class Doubles(Transform):
    def __call__(self, tensors, context):
        return [tensor * 2 for tensor in tensors]


@pytest.mark.parametrize("every", [1, 3])
def test_nothing_is_measured_at_steps_of_which_nobody_writes(tmp_path, monkeypatch, every):
    taken = []
    real = Report.before

    def noting(self, tensors, *, owned):
        taken.append(1)
        return real(self, tensors, owned=owned)

    monkeypatch.setattr(Report, "before", noting)
    monitor = StatsMonitor([Watch(params="*", tensors="param", stats="mean")], every_n_steps=every)
    change = GradientTransforms([Apply(Doubles(), params="*")])
    memory = Memory()
    trainer_of(tmp_path, monitor, change, logger=memory, log_every_n_steps=1).fit(Net(), data(6))
    assert len(taken) == len(memory.steps_of("transform_norm_before/0_Doubles")) == 6 // every
