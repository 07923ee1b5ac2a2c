"""The documentation site: `make site` builds it from docs/, from the pages of `lightning-hooks explain` and from docstrings."""
