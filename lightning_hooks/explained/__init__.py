"""The pages of `lightning-hooks explain`, as `pages.json` holds them: reading one loads neither torch nor the rules.

`python -m website.pages` writes the file anew from the declarations of rules, causes, checks and errors.
"""

from lightning_hooks.explained.pages import Page, Section, command_for, page_of, pages

__all__ = ["Page", "Section", "command_for", "page_of", "pages"]
