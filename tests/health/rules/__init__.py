"""Health rules, one file for each family."""
