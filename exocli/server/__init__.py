"""`exo serve`: the session over HTTP. Only the commands `serve` and `ps` and their like import it."""
