"""Shows text in the terminal of a fit or a plain loop, above the progress bar if there is one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer


def print_above(trainer: Trainer, text_for: Callable[[TextIO], str]) -> None:
    """Print lines of text without breaking the progress bar; without an active bar, on standard error.

    Args:
        trainer: of the fit.
        text_for: makes one or several lines of text for a stream.
    """
    bar: Any = trainer.progress_bar_callback
    if bar is not None and getattr(bar, "is_enabled", True) and _is_active(bar):
        # Each kind of bar prints above itself: tqdm moves the bar down, and rich redirects what is printed.
        text, draw = text_for(sys.stdout), getattr(getattr(bar, "progress", None), "refresh", None)
        if draw is None:
            bar.print(text)
        else:
            # A thread of rich draws the bar. If the bar has lost a line and was not drawn since, the thread may draw it between
            # composing the text and writing it, and the text then overwrites the line above. So draw the bar before composing,
            # and print all lines at once.
            draw()
            bar.print(text + "\n", end="")
    else:
        print(text_for(sys.stderr), file=sys.stderr, flush=True)


def print_in_loop(text_for: Callable[[TextIO], str]) -> None:
    """Print lines of text on standard error, above the bars that tqdm draws there, as the Trainer of `transformers` does.

    Args:
        text_for: makes one or several lines of text for a stream.
    """
    text, tqdm = text_for(sys.stderr), getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None or not getattr(tqdm, "_instances", ()):
        print(text, file=sys.stderr, flush=True)
    else:
        # tqdm takes its bars off the screen, writes the lines, and draws the bars below them.
        tqdm.write(text, file=sys.stderr)


def _is_active(bar: Any) -> bool:
    """Whether a bar is on the screen; a bar of another library is asked nothing."""
    of_rich = getattr(bar, "progress", None)
    of_tqdm = [getattr(bar, name, None) for name in ("_train_progress_bar", "_val_progress_bar")]
    if of_rich is None and not any(each is not None for each in of_tqdm):
        return False
    return of_rich is not None or any(each is not None and not each.disable for each in of_tqdm)
