"""The page that shows a whole network over a whole run, and its hosts: TensorBoard, `view`, `report`, a notebook.

Importing this package loads neither torch nor Lightning, and NumPy only when a run is read.
"""
