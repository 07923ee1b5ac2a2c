"""What a user asks about hooks: pause them, assert that none is left, see what rules match."""
