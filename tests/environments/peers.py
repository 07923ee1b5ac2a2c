"""`make gallery PEERS=1`: the gallery with other packages, in an environment of its own: `python -m tests.environments.peers`.

The environment sees the packages of the one that runs this, through a path file, so that only the other packages and what they
alone require is installed; they never get into the environment of the tests. It stays in build/peers. Options are passed on to
`galleries.health.peers`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "peers"
PACKAGES = ("torchmortem==0.1.1", "torch-audit==0.3.0", "torchtest2==0.1.0")


def environment() -> Path:
    """Make the environment where it is missing or has other versions; returns its Python."""
    python = FOLDER / "bin" / "python"
    installed = FOLDER / "installed"
    if installed.exists() and installed.read_text(encoding="utf-8").split() == list(PACKAGES):
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(FOLDER)], check=True)
    theirs = Path(query(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (theirs / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    # torch is constrained to the build that is there, so that pip never fetches another one.
    torch = query(python, "import importlib.metadata as m; print('torch==' + m.version('torch'))")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", torch, *PACKAGES], check=True)
    installed.write_text("\n".join(PACKAGES) + "\n", encoding="utf-8")
    return python


def query(python: Path, code: str) -> str:
    """What a line of Python prints there."""
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Make the environment and run the trainings in it."""
    command = [str(environment()), "-m", "galleries.health.peers", *sys.argv[1:]]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}).returncode)


if __name__ == "__main__":
    main()
