"""Snapshots: how a model, an optimizer and every object that they hold are put back bit for bit."""
