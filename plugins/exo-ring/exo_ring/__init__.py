"""The `ring` backend: one model on several ranks, on MLX's own distributed layer.

Uses the public names of `exocli` and the engine of `exo_mlx`; the core knows nothing of it.
"""
