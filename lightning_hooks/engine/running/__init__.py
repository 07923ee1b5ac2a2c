"""A run: the hook manager of a model, the hooks that it installs, and who takes part."""
