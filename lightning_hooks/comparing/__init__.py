"""How two runs are compared, as functions of arrays: exactly (`exact.py`), or with bands (`bands.py`)."""
