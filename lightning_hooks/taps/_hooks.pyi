from collections.abc import Callable
from types import CodeType
from typing import Any
from weakref import ReferenceType

def setup(
    tensor: type,
    graph_task: Callable[[], int],
    floating: tuple[Any, ...],
    direct: bool,
    grad_enabled: Callable[[], bool],
    has_gradient: Callable[..., bool],
    /,
) -> None: ...
def setup_calling(
    globals: dict[str, Any], tracing_state: Callable[[], Any], code: CodeType | None, give_way: Callable[..., None], /
) -> None: ...

class Flag:
    open: bool

class Look:
    def __init__(self, gate: Flag, see: Callable[..., Any], /) -> None: ...
    def __call__(self, grad: Any, /) -> None: ...

class Plain:
    def __init__(self, gate: Flag, called: set[int], see: Any, grad: Any, otherwise: Callable[..., Any], /) -> None: ...
    def run(self, module: Any, args: Any, output: Any, /) -> Any: ...

class StandIn:
    hook: Any
    known: ReferenceType[Any]
    def __init__(self, hook: Any, known: ReferenceType[Any], /) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
