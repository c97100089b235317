"""Networks cut into VNodes, for people: describe one, look at its plan, train it on a grid, get its weights back.

Nothing here loads torch before it is needed: importing it costs nothing, also on a machine without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from computepool.core.networks.estimate import Machine as Machine
    from computepool.core.networks.spec import NetworkSpec as NetworkSpec
    from computepool.core.networks.spec import OptimizerSpec as OptimizerSpec
    from computepool.networks.local_grid import LocalGrid as LocalGrid
    from computepool.networks.local_grid import local as local
    from computepool.networks.network import Network as Network
    from computepool.networks.network import to_torch as to_torch
    from computepool.networks.reference_run import ReferenceRun as ReferenceRun
    from computepool.networks.reference_run import reference as reference
    from computepool.networks.remote import HubGrid as HubGrid
    from computepool.networks.remote import TrainOptions as TrainOptions
    from computepool.networks.residual import Residual as Residual
    from computepool.node.vnodes.data import Dataset as Dataset
    from computepool.node.vnodes.leaves import Positional as Positional
    from computepool.node.vnodes.leaves import Transformer as Transformer

_HOMES = {
    "Machine": "computepool.core.networks.estimate",
    "NetworkSpec": "computepool.core.networks.spec",
    "OptimizerSpec": "computepool.core.networks.spec",
    "LocalGrid": "computepool.networks.local_grid",
    "local": "computepool.networks.local_grid",
    "Network": "computepool.networks.network",
    "to_torch": "computepool.networks.network",
    "ReferenceRun": "computepool.networks.reference_run",
    "reference": "computepool.networks.reference_run",
    "HubGrid": "computepool.networks.remote",
    "TrainOptions": "computepool.networks.remote",
    "Residual": "computepool.networks.residual",
    "Dataset": "computepool.node.vnodes.data",
    "Positional": "computepool.node.vnodes.leaves",
    "Transformer": "computepool.node.vnodes.leaves",
}

# What the extra brings.
_EXTRAS = ("torch", "numpy", "safetensors", "yaml", "grpc")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"computepool.networks has no {name}; it has {', '.join(sorted(_HOMES))}")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        advice = f"networks need {error.name}, which is not installed. Run: pip install 'computepool[networks]'"
        raise ModuleNotFoundError(advice, name=error.name) from None


def __dir__() -> list[str]:
    return sorted(_HOMES)
