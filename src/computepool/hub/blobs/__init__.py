"""Bytes by their hash. Knows no accounts: who may read what is decided elsewhere."""
