"""The settings of Sphinx. `make site` assembles the source first, see `assemble.py`."""

from __future__ import annotations

import lightning_hooks

ADDRESS = ""
"""Where the site is published, with a slash at its end; empty as long as the repository has no public address."""

project = "lightning_hooks"
author = "lightning_hooks developers"
project_copyright = author
release = version = lightning_hooks.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "website.extension",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# An anchor of a page is written as GitHub makes it, so that the same link works in the repository and on the site.
suppress_warnings = ["myst.header"]

default_role = "code"  # docstrings write `name` for code, as Markdown does
nitpicky = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them already
autodoc_class_signature = "separated"
napoleon_use_ivar = True
napoleon_use_rtype = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# `make links` asks for each address outside of the site.
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors = False

html_theme = "pydata_sphinx_theme"
html_title = project
html_baseurl = ADDRESS
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
toc_object_entries_show_parents = "hide"
html_theme_options = {
    "logo": {"text": project},
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "show_prev_next": False,
    "back_to_top_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars: dict[str, list[str]] = {"index": [], "website/start": [], "website/symptoms": [], "website/map": []}
