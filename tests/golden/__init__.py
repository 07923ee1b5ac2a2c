"""The golden record: what twelve set-ups write, warn of and hook, recorded once and compared after each change of structure.

    python -m tests.golden                  compare every set-up with its record, and print the differences
    python -m tests.golden loop ddp         compare these
    python -m tests.golden --record loop    write the record of this one again

A difference that a change intends is a line in `renames.py`: a new name, or an accepted difference with its reason. Record a
set-up again if its model, options or seeds change, or if it is to say other words, after a look at each difference.
"""
