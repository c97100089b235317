"""Which way of computing a slot is measured by: the fastest that is to be had."""

from __future__ import annotations

from collections.abc import Callable

from computepool.node.hardware.engines.by_numpy import NumpyEngine
from computepool.node.hardware.engines.by_opencl import OpenClEngine
from computepool.node.hardware.engines.by_torch import TorchEngine
from computepool.node.hardware.engines.plain import PlainEngine
from computepool.node.hardware.engines.port import Engine, NoEngine


def find_engine(*, on_gpu: bool, card_name: str = "") -> Engine:
    """Raises NoEngine with the reasons when a card is meant and nothing here can compute on it."""
    makers: tuple[Callable[[], Engine], ...]
    if on_gpu:
        makers = (TorchEngine, lambda: OpenClEngine(on_gpu=True, wanted=card_name))
    else:
        makers = (NumpyEngine, PlainEngine)
    reasons = []
    for make in makers:
        try:
            return make()
        except NoEngine as error:
            reasons.append(str(error))
    raise NoEngine("; ".join(reasons))
