"""A whole network in one process, as one torch module: what a run is compared with, and its weights load into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from computepool.core.networks.graph import draw_graph
from computepool.core.networks.shapes import infer_shapes, list_inputs, list_parameters
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.modules import VNodeModule, build, plant
from computepool.node.vnodes.seams import enter, leave


class UncutNetwork(nn.Module):
    """Its `state_dict` has the names of the uncut network: path, then the parameter's name."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        shapes = infer_shapes(spec)
        inputs = list_inputs(spec, shapes)
        self._spec = spec
        self._graph = draw_graph(spec)
        vnodes = {vnode.id: vnode for vnode in spec.vnodes}
        # By id. Torch does not see them here: it sees their leaves in the tree of names.
        self._vnodes: dict[str, VNodeModule] = {
            vnode_id: build(vnodes[vnode_id], inputs[vnode_id], seed=spec.seed) for vnode_id in self._graph.order
        }
        plant(self, (leaf for module in self._vnodes.values() for leaf in module.leaves()))
        self._parameter_names = [
            parameter.name for parameters in list_parameters(spec, shapes).values() for parameter in parameters
        ]
        self._output_path = self._graph.ancestors(spec.output[0])
        self.input_names = self._graph.source_names(self._output_path)

    def ordered_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """In the order in which norms are totalled. Torch's own order is that of the tree of names."""
        found = dict(self.named_parameters())
        return [(name, found[name]) for name in self._parameter_names]

    def set_moment(self, step: int, micro_batch: int) -> None:
        """Before every forward pass of training: what dropout draws depends on it."""
        for module in self._vnodes.values():
            module.set_moment(step, micro_batch)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The network's output. Inputs are given by the names of sources, or in the order of `input_names`."""
        sources = {**dict(zip(self.input_names, inputs, strict=False)), **named}
        return self._compute(self._output_path, sources)[self._spec.output[0]]

    def loss(self, sources: Mapping[str, Tensor]) -> Tensor:
        """Of one micro-batch: the mean over its samples."""
        return self._compute(self._graph.order, sources)[self._spec.loss]

    def _compute(self, vnode_ids: Sequence[str], sources: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for vnode_id in vnode_ids:
            given = []
            for edge in self._graph.inputs[vnode_id]:
                name = edge.source_name
                is_shared = len(self._graph.consumers[edge.source, edge.source_slot]) > 1
                given.append(enter(found[edge.source], is_shared=is_shared) if name is None else sources[name])
            found[vnode_id] = leave(self._vnodes[vnode_id](*given))
        return found


def answer(spec: NetworkSpec, weights: Mapping[str, Tensor], *inputs: Tensor, **named: Tensor) -> Tensor:
    """The network's output with these weights, as inference gives it."""
    network = UncutNetwork(spec)
    network.load_state_dict(dict(weights))
    network.eval()
    with torch.no_grad():
        return network(*inputs, **named)  # type: ignore[no-any-return]
