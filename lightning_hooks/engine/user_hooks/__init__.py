"""A user's own hooks: the participant that registers them, and the runner that checks them."""
