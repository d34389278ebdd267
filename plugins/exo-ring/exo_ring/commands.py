"""`exo ring check` and `exo ring plan`."""
