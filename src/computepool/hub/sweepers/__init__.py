"""The same services on a timer. Each is bounded by a batch size and may run in every hub at once."""
