import pytest
import torch

from lightning_hooks.transforms import AddNoise, ClipByGlobalNorm, Context, Function, Transform, Zero, ZeroNonFinite


def test_transform_is_plain_and_abstract() -> None:
    with pytest.raises(NotImplementedError, match=r"Transform must define __call__\(tensors, context\)"):
        Transform()([], Context())
    # jsonargparse offers the subclasses of a class only if the class is not a dataclass.
    assert not hasattr(Transform, "__dataclass_fields__")


def test_flags() -> None:
    kinds = (Zero, Function, ClipByGlobalNorm, ZeroNonFinite, AddNoise)
    assert [kind.needs_all for kind in kinds] == [False, False, True, False, False]
    assert [kind.repairs_nonfinite for kind in kinds] == [False, False, False, True, False]
    assert [kind.random for kind in kinds] == [False, False, False, False, True]


def test_defaults_are_not_shared() -> None:
    one, other = Context(), Context()
    one.state["count"] = 1
    one.generator_for(torch.device("cpu"))
    assert other.state == {} and other.generators == {} and one.owned is False


def test_names() -> None:
    context = Context(names=["a.weight"])
    assert (context.name_of(0), context.name_of(1)) == ("a.weight", "tensor 1")


def test_generators_are_kept_and_seeded() -> None:
    context = Context(seed=11)
    generator = context.generator_for(torch.device("cpu"))
    assert generator.initial_seed() == 11
    assert context.generator_for(torch.device("cpu")) is generator
    assert list(context.generators) == ["cpu"]
    # The context of a later step continues with the generators that the callback has kept.
    assert Context(seed=99, generators=context.generators).generator_for(torch.device("cpu")) is generator


def test_a_second_device_does_not_repeat_the_first() -> None:
    context = Context(seed=11, generators={"elsewhere": torch.Generator()})
    assert context.generator_for(torch.device("cpu")).initial_seed() == 12
