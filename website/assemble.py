"""Assembles the source of the site: `python -m website.assemble FOLDER`.

The pages of docs/ keep their paths, so that links between them hold in the repository and on the site. Pages of
`lightning-hooks explain` and of the public names are generated.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import lightning_hooks
from lightning_hooks import hooks, transforms
from lightning_hooks.explained import Page, pages
from lightning_hooks.explained.pages import KINDS
from lightning_hooks.health.rule import FAMILIES

ROOT: Final = Path(__file__).parent.parent
EVIDENCE: Final = ("health", "trainings", "common_faults", "reports", "support", "versions", "wheels", "clients")
"""The pages of docs/ that say what was measured or run, which stand apart from guides."""
GUIDES: Final = (
    "dashboard",
    "check",
    "flight_recorder",
    "baselines",
    "rules",
    "statistics",
    "transforms",
    "hooks",
    "consumers",
)
"""The guides in the order in which the site lists them; any other page of docs/ follows."""
_FAULTS: Final = ROOT / "docs/faults.md"
"""The pages of `lightning-hooks explain` in one file, for readers of the repository. The site has the pages themselves."""
_PROJECT: Final = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/internals.md")
_MEASURED: Final = ("benchmarks/RESULTS.md", "benchmarks/RESULTS-h200.md", "benchmarks/trainings/PROTOCOL.md")
_OF_GUIDES: Final = (
    "Each guide is about one task, and its examples are run by tests. What a `HealthMonitor` says, and how its rules are "
    "changed, stands [beside its record](docs/health.md)."
)
_OF_EVIDENCE: Final = (
    "What was said of healthy and faulty trainings, what watching costs, what is supported, and which versions were run."
)
_KIND_TITLES: Final = {
    "rule": "Health rules",
    "cause": "Causes",
    "check": "Checks",
    "comparison": "Comparisons",
    "error": "Errors",
}
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_SPECIAL: Final = re.compile(r"([\\*_\[\]<>{}$|])")


def assemble(folder: Path) -> None:
    """Write the source of the site into a folder, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    recipes = _recipes()
    trees = (_guides(recipes), 1, "Guides"), (recipes, 1, "Cookbook")
    texts = [ROOT / each for each in (*_PROJECT, *_MEASURED)] + _documents()
    texts += sorted(each for each in (ROOT / "website").glob("*.md") if each.stem != "index")
    for path in dict.fromkeys(texts):
        _mirror(path, folder)
    shutil.copytree(ROOT / "website/_static", folder / "_static")
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix in (".png", ".svg"):
            _copy(path, folder)
    # The start page lies at the top of the site, and in the repository beside the other pages of the site.
    _write(folder / "index.md", (ROOT / "website/index.md").read_text(encoding="utf-8").replace("../", ""))
    _write(folder / "guides.md", f"# Guides\n\n{_OF_GUIDES}\n\n" + "\n".join(_toctree(*each) for each in trees))
    evidence = [f"docs/{name}" for name in EVIDENCE] + [each.removesuffix(".md") for each in _MEASURED]
    _write(folder / "evidence.md", _index("Evidence", _OF_EVIDENCE, evidence))
    project = [each.removesuffix(".md") for each in _PROJECT]
    _write(folder / "project.md", _index("Project", "How to contribute, what changed, and how the package is built.", project))
    _write_explained(folder / "explain")
    _write_reference(folder / "api")


def _recipes() -> list[str]:
    """The cookbook and its recipes, in the order of the cookbook."""
    cookbook = ROOT / "docs/cookbook/index.md"
    names = re.findall(r"\((\w+)\.md\)", cookbook.read_text(encoding="utf-8"))
    return [f"docs/cookbook/{name}" for name in ("index", *names)]


def _guides(recipes: Sequence[str]) -> list[str]:
    """The guides: all pages that are neither evidence nor a recipe."""
    found = [each.relative_to(ROOT).with_suffix("").as_posix() for each in _documents()]
    left = {*found} - {f"docs/{name}" for name in (*EVIDENCE, "internals")} - {*recipes}
    ordered = [f"docs/{name}" for name in GUIDES if f"docs/{name}" in left]
    return [*ordered, *(each for each in found if each in left and each not in ordered)]


def _documents() -> list[Path]:
    return sorted({*(ROOT / "docs").rglob("*.md")} - {_FAULTS})


def _mirror(path: Path, folder: Path) -> None:
    """Copy a page to the same path below a folder, with the files that its links name."""
    text = path.read_text(encoding="utf-8")
    by_anchor = {name.lower(): name for name in pages()}

    def linked(match: re.Match[str]) -> str:
        target = (path.parent / match[3].partition("#")[0]).resolve()
        if target == _FAULTS:
            name = by_anchor.get(match[3].partition("#")[2], "index")
            return f"[{match[2]}]({Path(os.path.relpath(ROOT / 'explain' / name, path.parent)).as_posix()}.md)"
        if re.match(r"\w+:|#", match[3]) or not target.exists() or target.suffix == ".md" and _is_page(target):
            return match[0]
        if target.is_dir() or target.suffix == ".md":
            return match[2]  # Neither a folder nor a page that the site does not have can be shown.
        _copy(target, folder)
        return match[0]

    _write(folder / path.relative_to(ROOT), _outside_code(text, linked))


def _is_page(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return name in (*_PROJECT, *_MEASURED) or name.startswith("docs/")


def _outside_code(text: str, linked: Any) -> str:
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _LINK.sub(linked, part) for part in parts)


def _copy(path: Path, folder: Path) -> None:
    target = folder / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _index(title: str, text: str, names: Iterable[str]) -> str:
    return f"# {title}\n\n{text}\n\n{_toctree(names, depth=1)}"


def _toctree(names: Iterable[str], depth: int = 0, caption: str = "") -> str:
    options = [f":maxdepth: {depth}"] if depth else [":hidden:"]
    options += [f":caption: {caption}"] if caption else []
    return "\n".join(["```{toctree}", *options, "", *names, "```", ""])


def _write_explained(folder: Path) -> None:
    """The pages of `lightning-hooks explain`, and the lists of their names."""
    for page in pages().values():
        _write(folder / f"{page.name}.md", "\n".join(_explained(page)))
    parts = [
        "# Rules, causes, checks and errors",
        "",
        "Each name that a message says has a page: what is meant, why it harms, how it is judged, what to do, and when it is a "
        "false alarm. `lightning-hooks explain NAME` prints the same page.",
        "",
    ]
    for kind in KINDS:
        names = [page for page in pages().values() if kind in page.kinds]
        parts += [f"## {_KIND_TITLES[kind]}", ""]
        if kind == "rule":
            for family in FAMILIES:
                inside = [page.name for page in names if page.family == family]
                parts += [f"### {family.capitalize()}", "", f"```{{names}} {' '.join(inside)}", "```", ""]
        else:
            parts += [f"```{{names}} {' '.join(page.name for page in names)}", "```", ""]
    seen: set[str] = set()
    for kind in KINDS:
        names_of_kind = [name for name, page in pages().items() if kind in page.kinds and name not in seen]
        seen.update(names_of_kind)
        parts += [_toctree(names_of_kind, caption=_KIND_TITLES[kind])]
    _write(folder / "index.md", "\n".join(parts))


def _explained(page: Page) -> Iterator[str]:
    kinds = " and ".join(filter(None, [", ".join(page.kinds[:-1]), page.kinds[-1]]))
    yield from (f"# {page.name}", "", f"*{kinds.capitalize()}.* In a terminal: `lightning-hooks explain {page.name}`.", "")
    for section in page.sections:
        yield from (f"## {section.title}", "")
        for paragraph in section.paragraphs:
            yield from (escaped(paragraph), "")
        yield from (f"- {escaped(point)}" for point in section.points)
        yield ""


def escaped(text: str) -> str:
    """Plain sentences as Markdown, in which only backticks have a meaning."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)


def _write_reference(folder: Path) -> None:
    """The reference of the public names, from their docstrings."""
    public = [name for name in lightning_hooks.__all__ if name not in ("hooks", "transforms")]
    groups: dict[str, list[str]] = {
        "Callbacks": [name for name in public if lightning_hooks._MODULE_OF[name].startswith("callbacks")],
        "Errors": [name for name in public if lightning_hooks._MODULE_OF[name] == "errors"],
    }
    groups["Other names"] = [name for name in public if not any(name in names for names in groups.values())]
    groups = {title: groups[title] for title in ("Callbacks", "Other names", "Errors")}
    parts = [
        "# Reference of the public names",
        "",
        "Import these names from `lightning_hooks`, transforms from `lightning_hooks.transforms`, and ready-made hooks from "
        "`lightning_hooks.hooks`.",
        "",
    ]
    for title, names in groups.items():
        parts += [f"## {title}", ""]
        parts += [f"- [`{name}`]({name}.md): {_summary(getattr(lightning_hooks, name))}" for name in names]
        parts += [""]
        for name in names:
            _write(folder / f"{name}.md", _documented(name, "lightning_hooks", [name]))
    for package, names in (("transforms", sorted({*transforms.__all__} - {*public})), ("hooks", _ready_made())):
        parts += [f"## {package.capitalize()}", ""]
        parts += [f"- [`{package}.{name}`]({package}.md): {_summary(_of(package, name))}" for name in names] + [""]
        _write(folder / f"{package}.md", _documented(package.capitalize(), f"lightning_hooks.{package}", names))
    parts.append(_toctree([*(name for names in groups.values() for name in names), "transforms", "hooks"]))
    _write(folder / "index.md", "\n".join(parts))


def _of(package: str, name: str) -> Any:
    return getattr({"transforms": transforms, "hooks": hooks}[package], name)


def _ready_made() -> list[str]:
    return ["breakpoint_if_nonfinite", "print_shapes", "print_stats", "save_to"]


def _summary(value: Any) -> str:
    return escaped(" ".join(inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0].split()))


def _documented(title: str, module: str, names: Sequence[str]) -> str:
    lines = [f"# {title}", "", "```{eval-rst}"]
    for name in names:
        value = getattr(sys.modules[module], name)
        kind = "autoclass" if inspect.isclass(value) else "autofunction" if callable(value) else "autodata"
        lines += [f".. {kind}:: {module}.{name}", *["   :members:"] * (kind == "autoclass"), ""]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
