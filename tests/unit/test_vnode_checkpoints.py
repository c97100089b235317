"""A VNode's state as bytes: equal states are equal bytes, and nothing is believed before it is checked."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from computepool.node.vnodes.checkpoints import (
    BUFFER,
    OPTIMIZER,
    WEIGHT,
    CheckpointCache,
    CheckpointUnreadable,
    CheckpointWriter,
    Packed,
    Snapshot,
    pack,
    read_weights,
    take_snapshot,
    unpack,
)
from computepool.node.vnodes.frames import NumbersWentWrong


def make_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        WEIGHT + "3.weight": torch.randn(4, 3, generator=generator),
        WEIGHT + "3.bias": torch.randn(4, generator=generator),
        BUFFER + "3.count": torch.tensor(7),
        OPTIMIZER + "3.weight.exp_avg": torch.randn(4, 3, generator=generator),
    }


def test_a_state_survives_and_equal_states_are_equal_bytes() -> None:
    tensors = make_tensors()

    packed = pack(take_snapshot("v", 5, tensors))
    again = pack(take_snapshot("v", 5, dict(reversed(tensors.items()))))
    back = unpack(packed.content, "v", tensors)

    assert (packed.content, packed.sha256, packed.digest) == (again.content, again.sha256, again.digest)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    assert set(read_weights(packed.content, "v")) == {"3.weight", "3.bias", "3.count"}


@pytest.mark.parametrize("name", list(make_tensors()))
def test_the_digest_covers_weights_buffers_and_optimizer_state(name: str) -> None:
    tensors = make_tensors()
    digest = pack(take_snapshot("v", 5, tensors)).digest

    tensors[name] = tensors[name] + 1

    assert pack(take_snapshot("v", 5, tensors)).digest != digest


def test_a_snapshot_does_not_change_with_the_weights() -> None:
    tensors = make_tensors()
    snapshot = take_snapshot("v", 5, tensors)
    before = pack(snapshot).digest

    tensors[WEIGHT + "3.bias"].add_(1)

    assert pack(snapshot).digest == before


def test_bytes_that_are_no_checkpoint_are_refused() -> None:
    content = pack(take_snapshot("v", 5, make_tensors())).content

    for bad in (b"", b"garbage", content[:-5], b"\xff" * 8 + content):
        with pytest.raises(CheckpointUnreadable, match="VNode v"):
            unpack(bad, "v", make_tensors())


def test_a_checkpoint_of_another_vnode_is_refused_with_what_differs() -> None:
    content = pack(take_snapshot("v", 5, make_tensors())).content
    expected = make_tensors()

    with pytest.raises(CheckpointUnreadable, match=r"lacks weight/4\.weight"):
        unpack(content, "v", expected | {WEIGHT + "4.weight": torch.zeros(1)})
    del expected[BUFFER + "3.count"]
    with pytest.raises(CheckpointUnreadable, match=r"has buffer/3\.count"):
        unpack(content, "v", expected)
    with pytest.raises(CheckpointUnreadable, match=r"should be torch\.float32\[5\]"):
        unpack(content, "v", make_tensors() | {WEIGHT + "3.bias": torch.zeros(5)})
    with pytest.raises(CheckpointUnreadable, match=r"should be torch\.int32\[\]"):
        unpack(content, "v", make_tensors() | {BUFFER + "3.count": torch.tensor(1, dtype=torch.int32)})


def test_weights_that_nobody_could_go_on_from_are_neither_stored_nor_loaded() -> None:
    from safetensors.torch import save

    tensors = make_tensors()
    tensors[WEIGHT + "3.bias"][2] = float("nan")

    with pytest.raises(NumbersWentWrong, match=r"3\.bias after 5 steps"):
        pack(take_snapshot("v", 5, tensors))
    with pytest.raises(CheckpointUnreadable, match=r"NaN or infinity in weight/3\.bias"):
        unpack(save(tensors), "v", make_tensors())


def test_the_writer_packs_in_order_and_holds_training_up_when_it_lags() -> None:
    told: list[int] = []
    may_go = threading.Event()

    def tell(packed: Packed, epoch: int) -> None:
        assert may_go.wait(10)
        told.append(packed.step)

    writer = CheckpointWriter(tell, lambda *_: None)
    for step in (1, 2):
        writer.submit(take_snapshot("v", step, make_tensors()), epoch=1, vnodes=1)
    third = threading.Thread(
        target=lambda: writer.submit(take_snapshot("v", 3, make_tensors()), epoch=1, vnodes=1), daemon=True
    )
    third.start()
    third.join(0.2)
    assert third.is_alive(), "two rounds wait already"

    may_go.set()
    third.join(10)
    writer.flush(10)
    writer.close()

    assert told == [1, 2, 3]


def test_a_snapshot_that_cannot_be_packed_is_told() -> None:
    failed: list[tuple[str, str]] = []

    def tell_failed(snapshot: Snapshot, epoch: int, error: Exception) -> None:
        failed.append((snapshot.vnode_id, str(error)))

    writer = CheckpointWriter(lambda *_: None, tell_failed)
    writer.submit(take_snapshot("v", 2, {WEIGHT + "w": torch.tensor([float("inf")])}), epoch=1, vnodes=1)
    writer.flush(10)
    writer.close()

    assert failed == [("v", "VNode v holds NaN or infinity in weight/w after 2 steps")]


def test_the_cache_keeps_what_is_newest_and_gives_only_what_was_asked_for() -> None:
    packed = [pack(take_snapshot("v", step, make_tensors())) for step in (1, 2, 3)]
    cache = CheckpointCache(bytes_max=2 * len(packed[0].content) + 10)
    for each in packed:
        cache.put(each)

    assert cache.find("v", 1, packed[0].sha256) is None
    assert cache.find("v", 3, packed[2].sha256) == packed[2].content
    assert cache.find("v", 3, packed[0].sha256) is None, "the same step of another epoch may be another state"
    cache.forget_before(3)
    assert cache.find("v", 2, packed[1].sha256) is None
    assert cache.size_bytes == len(packed[2].content)
