"""The conformance kit: `pytest --pyargs exocli.testing.suite --exo-backend NAME`. Needs pytest alone."""
