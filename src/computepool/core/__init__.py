"""Rules only: no I/O, clock, randomness, environment, logging or async. Same input, same answer."""
