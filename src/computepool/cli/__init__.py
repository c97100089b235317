"""The terminal. Prints what the SDK returns and holds no rules of its own."""
