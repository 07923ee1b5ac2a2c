"""Public reports of trainings that do not work, rebuilt as small scripts, each with its fault and without it."""
