"""Brings the weights of placement from their file: the shipped one, or the operator's."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from computepool.core.placement.weights import WeightBook, parse_weights
from computepool.settings import InvalidSettings


def load_weights(path: str | Path | None = None) -> WeightBook:
    """The operator's file, or the shipped one when none is named. Read once, at the hub's start."""
    source = Path(path) if path else files("computepool.core.placement").joinpath("placement.toml")
    try:
        return parse_weights(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{source}: {error}") from error
