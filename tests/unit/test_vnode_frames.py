"""Tensors as bytes and back, and the checks that need nothing but a frame."""

from __future__ import annotations

import pytest
import torch

from computepool.core.networks.spec import Dtype
from computepool.node.vnodes.frames import (
    FrameLimits,
    RefusalCode,
    check_numbers,
    find_tensor_fault,
    name_dtype,
    to_bytes,
    to_tensor,
)

LIMITS = FrameLimits(bytes_max=1_000)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool]
)
@pytest.mark.parametrize("shape", [(3, 4), (), (0,), (2, 0, 3), (5,)])
def test_a_tensor_survives_the_way_through_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 3).to(dtype)

    content = bytes(to_bytes(tensor))
    back = to_tensor(content, name_dtype(tensor), shape)

    assert len(content) == tensor.numel() * tensor.element_size()
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_bytes_of_a_strided_tensor_are_those_of_its_dense_form() -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).t()

    assert bytes(to_bytes(tensor)) == bytes(to_bytes(tensor.contiguous()))


def test_a_received_tensor_lies_at_the_start_of_memory_of_its_own() -> None:
    content = memoryview(b"x" + bytes(to_bytes(torch.arange(8, dtype=torch.float32))))[1:]

    tensor = to_tensor(content, Dtype.F32, (8,))

    assert tensor.storage_offset() == 0
    assert tensor.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    ("dtype", "shape", "size_bytes", "code"),
    [
        ("f64", (1,), 8, RefusalCode.WRONG_DTYPE),
        ("f32", (2, -1), 8, RefusalCode.WRONG_SHAPE),
        ("f32", (1,) * 12, 4, RefusalCode.WRONG_SHAPE),
        ("f32", (1_000_000_000, 1_000_000_000), 8, RefusalCode.TOO_LARGE),
        ("f32", (251,), 1_004, RefusalCode.TOO_LARGE),
        ("f32", (3,), 8, RefusalCode.WRONG_SHAPE),
    ],
)
def test_a_bad_head_is_refused_before_memory_is_reserved(
    dtype: str, shape: tuple[int, ...], size_bytes: int, code: RefusalCode
) -> None:
    refusal = find_tensor_fault(dtype, shape, size_bytes, LIMITS)

    assert refusal is not None
    assert refusal.code is code
    assert find_tensor_fault("f32", (250,), 1_000, LIMITS) is None


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (torch.tensor([1.0, float("nan")]), RefusalCode.NOT_FINITE),
        (torch.tensor([1.0, float("-inf")]), RefusalCode.NOT_FINITE),
        (torch.tensor([1.0, float("inf")], dtype=torch.bfloat16), RefusalCode.NOT_FINITE),
        (torch.full((4,), 1e10), RefusalCode.NORM_TOO_LARGE),
        (torch.full((4,), 1e30), RefusalCode.NORM_TOO_LARGE),
    ],
)
def test_numbers_that_no_training_gives_are_found(tensor: torch.Tensor, code: RefusalCode) -> None:
    fault = check_numbers(tensor, LIMITS)

    assert fault is not None
    assert fault[0] is code


@pytest.mark.parametrize(
    "tensor", [torch.randn(100) * 100, torch.empty(0), torch.tensor([1 << 62]), torch.zeros(3, dtype=torch.bool)]
)
def test_ordinary_numbers_pass(tensor: torch.Tensor) -> None:
    assert check_numbers(tensor, LIMITS) is None
