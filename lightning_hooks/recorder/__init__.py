"""The flight recorder's plain values: the record of a step that went wrong, as files and in words."""
