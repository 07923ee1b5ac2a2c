"""Recording a training: the calls of a step, and the step that is run again to name an operation."""
