"""What a GPU shows: tests, synchronisations, bandwidth, whole fits; one command with a time limit (`make gpu`)."""
