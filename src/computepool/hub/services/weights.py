"""Brings the weights of placement from their file: the shipped one, or the operator's."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from computepool.core.placement.weights import WeightBook, parse_weights
from computepool.settings import InvalidSettings


def load_weights(path: Path | None = None) -> WeightBook:
    source = files("computepool.core.placement").joinpath("placement.toml") if path is None else path
    try:
        return parse_weights(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{source}: {error}") from error
