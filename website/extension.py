"""What the site adds to Sphinx: links from names to their pages, lists of names, and pictures with numbers."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from lightning_hooks.explained import pages


class Names(SphinxDirective):
    """`{names} DeadUnits DeadLayer` lists pages of `lightning-hooks explain`, each with its first sentence."""

    has_content = False
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The list."""
        known = pages()
        lines: list[str] = []
        for name in self.arguments[0].split():
            if name not in known:
                raise self.error(f"there is no page of {name}")
            lines.append(f"- `{name}`: {known[name].summary}")
        return self.parse_text_to_nodes("\n".join(lines))


class Annotated(SphinxDirective):
    """A picture on which numbers stand, and below it the numbered list of what they point at.

    The argument is the path of the picture. Each line of the content is `LEFT TOP text`, both in per cent of the picture.
    """

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"alt": str}

    def run(self) -> list[nodes.Node]:
        """The picture and its list."""
        figure = nodes.container(classes=["annotated"])
        figure += nodes.image(uri=self.arguments[0], alt=self.options.get("alt", ""))
        texts: list[str] = []
        for line in self.content:
            left, top, text = line.split(maxsplit=2)
            texts.append(f"{len(texts) + 1}. {text}")
            style = f"left:{float(left)}%;top:{float(top)}%"
            mark = f'<span class="annotation" style="{style}" aria-hidden="true">{len(texts)}</span>'
            figure += nodes.raw("", mark, format="html")
        listed = nodes.container(classes=["annotations"])
        self.state.nested_parse(StringList(texts, source=""), self.content_offset, listed)
        return [figure, listed]


def _link_names(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Let each name of a rule, cause, check or error that is written as code lead to its page."""
    known = pages()
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext()
        page = f"explain/{name}"
        if name not in known or page == docname or isinstance(literal.parent, nodes.reference):
            continue
        if any(isinstance(each, nodes.title) for each in _above(literal)):
            continue
        link = nodes.reference("", "", internal=True, refuri=app.builder.get_relative_uri(docname, page))
        literal.replace_self(link)
        link += literal


def _above(node: nodes.Node) -> list[nodes.Node]:
    found: list[nodes.Node] = []
    while node.parent is not None:
        node = node.parent
        found.append(node)
    return found


def _skip_calls_of_trainers(app: Sphinx, what: str, name: str, value: object, skip: bool, options: Any) -> bool | None:
    """Leave out the methods of a callback that only a Trainer calls."""
    return True if name.startswith("on_") or name in ("setup", "teardown", "state_dict", "load_state_dict") else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the links."""
    app.add_directive("names", Names)
    app.add_directive("annotated", Annotated)
    app.connect("doctree-resolved", _link_names)
    app.connect("autodoc-skip-member", _skip_calls_of_trainers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
