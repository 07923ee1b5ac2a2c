"""The page that shows every layer of a network over every step of a run, and the hosts that serve the page.

The hosts are TensorBoard, `lightning-hooks view`, `lightning-hooks report` and a notebook. Importing this package loads neither
torch nor Lightning; NumPy is loaded only when a run is read.
"""

REMOTE_STEPS = 1000
"""The most steps of a tag that TensorBoard keeps if the log directory is not local; of more steps it keeps a random sample."""
