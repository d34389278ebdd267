"""The backend sample for exo."""
