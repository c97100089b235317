"""Measurements that stand behind what the documents say of speed. Each prints a table and, last, one line of JSON."""
