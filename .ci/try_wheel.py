"""Runs the installed package: what serves, and with torch and Lightning a fit, its event file, and the page.

Argument: `compiled` or `pure`, the wheel that is installed. Prints what ran, and fails where the other one serves.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import threading
import urllib.request
from pathlib import Path

import lightning_hooks
from lightning_hooks import backends

# Of an event file, holding b"hooks": the length, its masked CRC-32C, the bytes, and theirs.
RECORD = bytes.fromhex("0500000000000000eab2043e686f6f6b73f126c797")


def check_backends(compiled: bool) -> None:
    """The implementations of this wheel serve, without torch."""
    home = Path(lightning_hooks.__file__).parent
    assert not (home.parent / "pyproject.toml").exists(), f"{home} is a source tree, not an installed package"
    compilers = [name for name in ("cc", "gcc", "c++", "g++", "clang", "cl", "clang-cl") if shutil.which(name)]
    hooks, events = backends.hooks(), backends.events()
    print(f"python {platform.python_version()}, {sysconfig.get_platform()}, compilers: {', '.join(compilers) or 'none'}")
    print(f"hooks: {hooks}; event files: {events}")
    assert (hooks.serves, events.serves) == (("native", "native") if compiled else ("python", "tensorboard")), (hooks, events)
    if events.module is not None:
        assert events.module.record(b"hooks") == RECORD, events.module.record(b"hooks").hex()


def check_tag(compiled: bool) -> None:
    """A wheel has the tag of a platform if, and only if, it has the compiled part."""
    about = importlib.metadata.distribution("lightning-hooks").read_text("WHEEL") or ""
    # auditwheel may add further tags of the same platform.
    tags = [line.removeprefix("Tag: ") for line in about.splitlines() if line.startswith("Tag: ")]
    assert tags and all(tag.startswith("cp311-abi3-") if compiled else tag == "py3-none-any" for tag in tags), tags


def check_fit(compiled: bool) -> None:
    """A watched fit gives the weights of a plain one, and its event file has the gradients of every step."""
    import torch
    from lightning.pytorch import Trainer, seed_everything
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.loggers import TensorBoardLogger

    from lightning_hooks import StatsMonitor, assert_no_hooks, read_run
    from lightning_hooks.cli.main import main
    from lightning_hooks.stats import kernels

    main(["info"])
    assert kernels.in_use().startswith("native" if compiled else "torch"), kernels.in_use()

    def weights(folder: str, watched: bool) -> dict[str, torch.Tensor]:
        seed_everything(0, verbose=False)
        model = BoringModel()
        trainer = Trainer(
            accelerator="cpu",
            max_steps=8,
            limit_val_batches=0,
            logger=TensorBoardLogger(folder, name="", version="run") if watched else False,
            callbacks=[StatsMonitor()] if watched else [],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
        )
        trainer.fit(model)
        assert_no_hooks(model)
        return model.state_dict()

    with tempfile.TemporaryDirectory() as folder:
        plain, watched = weights(folder, watched=False), weights(folder, watched=True)
        assert all(torch.equal(plain[name], watched[name]) for name in plain)
        run = read_run(Path(folder, "run"))
        norms = run.table("grad", "norm")
        print(f"a fit of 8 steps: weights bit-identical, {run!r}")
        assert norms.steps.tolist() == list(range(8)) and (norms["layer.weight"] > 0).all()
        check_page(Path(folder))


def check_page(logdir: Path) -> None:
    """The page is installed: in a report, and from the server of `view`."""
    from lightning_hooks.cli.main import main
    from lightning_hooks.dashboard import view

    assert main(["report", str(logdir / "run")]) == 0
    server = view.make(logdir)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with urllib.request.urlopen(view.url(server)) as answer:
        assert b"<html" in answer.read()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    os.environ.pop("LIGHTNING_HOOKS_KERNEL", None)
    compiled = {"compiled": True, "pure": False}[sys.argv[1]]
    check_backends(compiled)
    check_tag(compiled)
    if importlib.util.find_spec("torch") and importlib.util.find_spec("lightning"):
        check_fit(compiled)
    else:
        print("no torch here: nothing was trained")
