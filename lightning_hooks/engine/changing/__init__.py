"""Transforms bound to parameters and modules, and the participants that run them."""
