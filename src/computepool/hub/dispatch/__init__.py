"""Brings waiting slices and waiting nodes together. Memory here is a cache: the database decides who won."""
