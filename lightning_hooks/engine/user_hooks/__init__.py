"""A user's own hooks: the participant that registers them, the runner that checks them, and ready-made ones."""
