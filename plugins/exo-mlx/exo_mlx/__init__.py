"""The `mlx` backend: this machine, through mlx-lm."""
