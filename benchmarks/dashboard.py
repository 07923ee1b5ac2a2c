"""What the page costs for a run of 1,000 rows and 10,000 steps: the index, a tile, memory, the browser.

python -m benchmarks.dashboard
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from benchmarks import output
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.table_layout import SeriesHeader
from lightning_hooks.tensorboard import StepEventWriter

ROWS, STEPS = 1000, 10_000
STATS = ("mean", "std", "norm", "abs_max", "zero_fraction", "nonfinite", "count")
_PARTS = ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.up", "mlp.down", "norm1", "norm2")
_SERVER = """
import sys, threading
from pathlib import Path
from lightning_hooks.dashboard import view
server = view.make(Path(sys.argv[1]))
print(view.url(server), flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.readline()
# What getrusage says holds the peak of the process that started this one.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(float(status["VmHWM"].split()[0]) / 1024, flush=True)
"""
_FIRST, _STEP = "first picture, the run not indexed before", "a pan step with about 400 rows in sight"
_MEMORY = "memory of the server, at most"
# Whether every cell in sight has been drawn.
_DRAWN = """() => {
  const panel = window.lightningHooks?.views.map.panels[0];
  if (!panel?.drawn || !panel.model.scale) return false;
  let cells = 0, unknown = 0;
  panel.segments(panel.layout(), (r, begin, from, to, segment) => segment ? (cells += to - from) : unknown++);
  return cells > 1000 && !unknown;
}"""
_PAN = """async () => {
  const { views } = window.lightningHooks, times = [];
  for (let i = 0; i < 20; i++) {
    const started = performance.now();
    views.map.panels[0].pan(i % 2 ? -0.05 : 0.05);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    times.push(performance.now() - started);
    await new Promise((done) => setTimeout(done, 100));
  }
  return times;
}"""


def write_run(folder: str) -> None:
    """A run with a table of every default statistic, and the scalars of a rolled-up network."""
    names = tuple(f"blocks.{i // 8}.{_PARTS[i % 8]}.weight" for i in range(ROWS))
    headers = tuple(SeriesHeader("grad", stat, names, slice(i * ROWS, (i + 1) * ROWS)) for i, stat in enumerate(STATS))
    tags = tuple(f"grad_norm/blocks.{i}" for i in range(ROWS // 8))
    rng = np.random.default_rng(0)
    there = np.ones(len(STATS) * ROWS, dtype=np.bool_)
    writer = SummaryWriter(folder)
    run = StepEventWriter(writer)
    for step in range(STEPS):
        values = rng.standard_normal((len(STATS), ROWS))
        values[2:5] = np.exp(values[2:5] - step / STEPS)
        values[5:] = [[0.0], [1000.0]]
        merged = tags, values[2, : len(tags)].copy()
        run.write(LogEntry(step, "", headers, values.ravel(), there, {"run/grad_norm": float(values[2].max())}, merged))
    writer.close()


def seconds(call: Callable[[], Any]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def server_rows(folder: str) -> list[dict[str, Any]]:
    """The index and tiles, in a process of its own that has done nothing else."""
    code = """
import json, statistics, sys
from pathlib import Path
from benchmarks.dashboard import seconds
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.tiles import tile
from lightning_hooks.dashboard.tree import tree
made = []
index = seconds(lambda: made.append(LocalRun(Path(sys.argv[1]))))
run = made[0]
nodes = tree(run.rows("grad", "norm"), {})
rows = [node for node in nodes if node.row is not None]
folded = [node for node in nodes if node.name.count(".") == 1 and node.row is None]
found = {"index": index}
for name, stat, chosen in (("a tile of all rows", "norm", rows), ("a tile of folded parts", "norm", folded),
                           ("a tile of folded parts, std", "std", folded)):
    for level in (0, 3):
        times = [seconds(lambda: tile(run, "grad", stat, chosen, 2**level, 128 * i, 128 * (i + 1))) for i in range(9)]
        found[f"{name}, {2**level} step{'s' if level else ''} a cell"] = statistics.median(times)
print(json.dumps(found))
"""
    import json

    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    index = found.pop("index")
    size = sum(path.stat().st_size for path in Path(folder).iterdir())
    return [
        {"what": f"index of {size / 1e6:.0f} MB", "value": index, "unit": "s", "target": 2.0},
        *({"what": what, "value": 1000 * value, "unit": "ms", "target": 50.0} for what, value in found.items()),
    ]


def browser_rows(folder: str) -> list[dict[str, Any]]:
    """The first picture and panning in headless Chromium, and what the server then takes in memory."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        return [{"what": what, "skipped": "no Chromium with Playwright"} for what in (_FIRST, _STEP, _MEMORY)]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    url = process.stdout.readline().strip()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        first = seconds(lambda: (page.goto(f"{url}#view=map&tensor=grad&stat=norm"), page.wait_for_function(_DRAWN)))
        page.goto(f"{url}#view=map&tensor=grad&stat=norm&folded=%2B&fit=1")
        page.reload()
        page.wait_for_function(_DRAWN)
        page.wait_for_timeout(500)
        page.evaluate("() => lightningHooks.zoomTo(2000, 6000)")
        page.wait_for_function(_DRAWN)
        page.evaluate(_PAN)  # what is to the left and to the right is then there
        pan = statistics.median(page.evaluate(_PAN))
        rows = [
            {"what": _FIRST, "value": first, "unit": "s", "target": 2.0},
            {"what": _STEP, "value": pan, "unit": "ms", "target": 50.0},
        ]
        browser.close()
    process.stdin.write("\n")
    process.stdin.flush()
    memory = float(process.stdout.readline())
    process.wait(30)
    return [*rows, {"what": _MEMORY, "value": memory, "unit": "MB", "target": 100.0}]


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    options = output.arguments(main.__doc__ or "").parse_args(arguments)
    with TemporaryDirectory() as folder:
        write_run(folder)
        rows = [*server_rows(folder), *browser_rows(folder)]
    for row in rows:
        print(f"{row['what']}:", row.get("skipped") or f"{row['value']:.3g} {row['unit']}", flush=True)
    output.write(options.name or "dashboard", rows, options.out)


if __name__ == "__main__":
    main()
