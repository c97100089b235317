"""Samples by name: what fits a network, which of them a micro-batch takes, and files that hold no code."""

from __future__ import annotations

import pickle

import pytest
import torch

from computepool.core.errors import InvalidRequest
from computepool.core.networks.seeds import batch_indices
from computepool.node.vnodes.data import Dataset, list_data_faults
from tests.support.network_data import make_dataset, same_bits
from tests.support.networks import make_mlp


def test_a_micro_batch_takes_its_share_of_the_steps_samples() -> None:
    spec = make_mlp()
    data = Dataset(torch.arange(40.0).repeat(16, 1).T.contiguous(), torch.arange(40))
    expected = batch_indices(spec.seed, 3, 40, 16)
    taken = [data.batch(spec, 3, number) for number in range(4)]
    assert torch.cat([batch["y"] for batch in taken]).tolist() == expected
    assert all(torch.equal(batch["x"][:, 0].long(), batch["y"]) for batch in taken)
    assert torch.equal(data.take(expected, 2, 4)["y"], taken[2]["y"])


def test_a_micro_batch_is_a_tensor_of_its_own() -> None:
    data = Dataset(torch.zeros(4, 2), torch.zeros(4))
    data.take([0, 1, 2, 3], 0, 1)["x"].add_(1)
    assert float(data.tensors["x"].sum()) == 0


def test_data_comes_back_from_its_file_as_it_was() -> None:
    data = Dataset(torch.rand(5, 3), torch.arange(5), extra=torch.zeros(5, dtype=torch.int32))
    assert same_bits(dict(Dataset.from_bytes(data.to_bytes()).tensors), dict(data.tensors))
    assert len(data) == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", pickle.dumps({"x": 1}), b"\xff" * 100, b"\x10\x00\x00\x00\x00\x00\x00\x00{}"],
    ids=range(5),
)
def test_a_file_that_is_not_safetensors_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match="The data is not a safetensors file"):
        Dataset.from_bytes(content)


def test_tensors_of_different_lengths_and_none_at_all_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="x has 3, y has 2"):
        Dataset(torch.zeros(3, 1), torch.zeros(2))
    with pytest.raises(InvalidRequest, match="x has 0"):
        Dataset(torch.zeros(0, 1))
    with pytest.raises(InvalidRequest, match="none is there"):
        Dataset.from_tensors({})


def test_what_does_not_fit_is_told_by_the_sources_name() -> None:
    spec = make_mlp()
    assert list_data_faults(spec, make_dataset(spec)) == []
    assert list_data_faults(spec, Dataset(torch.zeros(3, 16), torch.zeros(3, 1, dtype=torch.int64))) == [
        "a sample of y is int64 [1] in the data, but the network takes i64[]"
    ]
