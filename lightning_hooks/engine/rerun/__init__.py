"""Running a step again: how a batch trains a model, in a plain loop or with a Trainer, for checks, autopsies and replays."""
