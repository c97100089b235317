"""Which slot may run which slice, and which one should. Knows nothing of queues or databases."""
