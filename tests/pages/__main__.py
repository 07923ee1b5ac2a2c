"""Writes what the blocks of pages print into the pages: `python -m tests.pages docs/cookbook/clip.md`."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

from tests.pages.page import with_texts
from tests.pages.player import is_shown, play


def main(arguments: list[str]) -> None:
    """Write each page; a block that shows a part of what is printed, with a line `...`, stays if it is still right."""
    warnings.filterwarnings("ignore")
    os.environ.setdefault("SLACK_WEBHOOK", "http://localhost:9/")  # nobody listens there
    before = Path.cwd()
    for path in map(Path, arguments):
        page = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            played = list(play(page))
            os.chdir(before)
        shown = [(block, said) for _, said, block in played if block is not None]
        parts = [(block, said) for block, said in shown if "..." in block.text]
        path.write_text(with_texts(page, [each for each in shown if each not in parts]), encoding="utf-8")
        for block, said in parts:
            if not is_shown(block.text, said):
                print(f"{path} shows\n{block.text}\nand its block printed\n{said}")


if __name__ == "__main__":
    main(sys.argv[1:])
