"""The page that shows a whole network over a whole run, and its hosts: TensorBoard, `view`, `report`, a notebook.

Importing this package loads neither torch nor Lightning, and NumPy only when a run is read.
"""

REMOTE_STEPS = 1000
"""How many steps of a tag TensorBoard keeps of a log directory that is not local; of more it chooses them at random."""
