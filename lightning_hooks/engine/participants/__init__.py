"""What every participant stands on: the interface, the order of actions, phases, the clock of overhead."""
