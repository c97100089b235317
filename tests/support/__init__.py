"""Real parts for tests: a PostgreSQL, hub processes, and nodes that speak the protocol."""
