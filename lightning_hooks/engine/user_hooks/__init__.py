"""A user's own hooks: the participant that places them, the runner that checks them, and ready-made ones."""
