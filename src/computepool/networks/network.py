"""A network as people hold it: its spec, found to be without faults, and perhaps the weights that it starts from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computepool.core.errors import InvalidSpec
from computepool.core.networks.cost import count_parameters
from computepool.core.networks.faults import list_spec_faults
from computepool.core.networks.spec import NetworkSpec, TensorType
from computepool.networks.yaml_file import read_yaml, write_yaml

if TYPE_CHECKING:
    from torch import Tensor, nn

    from computepool.core.networks.estimate import Machine
    from computepool.networks.local_grid import LocalGrid
    from computepool.networks.plan import Plan
    from computepool.networks.reference_run import ReferenceRun
    from computepool.networks.remote import HubGrid
    from computepool.networks.run import Run
    from computepool.networks.uncut import UncutNetwork
    from computepool.node.vnodes.data import Dataset


class Network:
    def __init__(self, spec: NetworkSpec, *, state: Mapping[str, Tensor] | None = None) -> None:
        """`state`: weights to start from, by their names in the uncut network; without them the seed says."""
        faults = list_spec_faults(spec)
        if faults:
            raise InvalidSpec("The network cannot be built: " + "; ".join(faults) + ".", faults=faults)
        self.spec = spec
        self.state = state
        # The last one that `train` began.
        self.run: Run | None = None

    @classmethod
    def from_torch(
        cls,
        module: nn.Module,
        *,
        sources: Mapping[str, str | TensorType],
        loss: str,
        split: str | int | Sequence[str] = "auto",
        keep_weights: bool = False,
        **options: Any,
    ) -> Network:
        """From a Sequential of supported modules, nested as you like, with `networks.Residual` for branches.

            Network.from_torch(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
                               sources={"x": "f32[64]", "y": "i64[]"}, loss="cross_entropy", batch_size=32)

        The first source goes in at the front, the last is what the loss compares with. `split` is "auto", a number of
        VNodes, or the paths of the modules that begin a new one. `options` are fields of NetworkSpec.
        """
        from computepool.networks.from_torch import describe_module

        spec = describe_module(module, sources=sources, loss=loss, split=split, **options)
        state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        return cls(spec, state=state if keep_weights else None)

    @classmethod
    def load(cls, path: str | Path) -> Network:
        """From a YAML file."""
        return cls(read_yaml(Path(path)))

    def save(self, path: str | Path) -> None:
        """To a YAML file. The weights are not in it."""
        write_yaml(self.spec, Path(path))

    @property
    def parameter_count(self) -> int:
        return count_parameters(self.spec)

    def to_torch(self) -> UncutNetwork:
        """The whole network as one torch module, with its first weights."""
        network = to_torch(self.spec)
        if self.state is not None:
            network.load_state_dict(dict(self.state))
        return network

    def plan(self, machines: Sequence[Machine]) -> Plan:
        """Where its VNodes would go on these machines, and how fast that would be against one of them."""
        from computepool.networks.plan import plan_network

        return plan_network(self.spec, machines)

    def train(self, data: Dataset, steps: int, *, grid: LocalGrid | HubGrid | None = None, **options: Any) -> Run:
        """Begins a run, on the grid where you are signed in unless another is given; `run.watch()`, `run.wait()`."""
        if grid is None:
            from computepool.networks.remote import HubGrid

            grid = HubGrid()
        self.run = grid.start(self, data, steps, **options)
        return self.run

    def state_dict(self) -> dict[str, Tensor]:
        """As last stored by the run that `train` began; before that, the weights that it starts from."""
        return dict(self.to_torch().state_dict()) if self.run is None else self.run.state_dict()

    def infer(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The network's output for these samples, with the weights of `state_dict`.

        At the PNodes of the run that `train` began, while that goes on; otherwise in this process. The bits are the
        same where both compute alike.
        """
        from computepool.core.networks.errors import NoLiveRun
        from computepool.networks.uncut import answer

        if self.run is not None and not self.run.is_over:
            with contextlib.suppress(NoLiveRun):
                # It may end just now.
                return self.run.infer(*inputs, **named)
        return answer(self.spec, self.state_dict(), *inputs, **named)

    def reference(self, data: Dataset, steps: int, *, threads: int = 1) -> ReferenceRun:
        """The same training in this process: the curve that a run has."""
        from computepool.networks.reference_run import reference

        return reference(self.spec, data, steps, state=self.state, threads=threads)


def to_torch(spec: NetworkSpec) -> UncutNetwork:
    """A module whose `state_dict` has the names of the uncut network."""
    from computepool.networks.uncut import UncutNetwork

    return UncutNetwork(spec)
