"""Use cases: load a snapshot, let core decide, apply in one transaction. No SQL text, no HTTP types."""
