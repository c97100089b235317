"""How a machine is cut into slots, and which tier a card has."""

from __future__ import annotations

import pytest

from computepool.core.nodes.slots import (
    CPU_SLOTS_MAX,
    GPUS_MAX,
    GpuCard,
    cut_into_slots,
    list_machine_faults,
)
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.tier import CPU_TIER, UNKNOWN_TIER, tier_of_gpu
from tests.support.builders import GB, make_machine, node_number

GIB = 1 << 30
RTX_3090 = GpuCard("NVIDIA GeForce RTX 3090", 24 * GIB)


def test_a_machine_has_one_slot_for_each_gpu_and_as_many_cpu_slots_as_its_owner_allows():
    slots = cut_into_slots(node_number(1), make_machine(gpus=(RTX_3090, RTX_3090), cpu_slots=3))
    assert [slot.name for slot in slots] == ["gpu:0", "gpu:1", "cpu:0", "cpu:1", "cpu:2"]
    assert [slot.kind for slot in slots] == [SlotKind.GPU] * 2 + [SlotKind.CPU] * 3


def test_cores_ram_and_disk_are_shared_out_evenly():
    machine = make_machine(gpus=(RTX_3090,), cpu_slots=2, cores=8, ram_bytes=32 * GB, disk_bytes=100 * GB)
    for slot in cut_into_slots(node_number(1), machine):
        assert (slot.cores, slot.ram_bytes, slot.disk_bytes) == (2, 32 * GB // 3, 100 * GB // 3)


def test_a_gpu_slot_has_its_own_cards_memory_and_tier_and_a_cpu_slot_has_none():
    machine = make_machine(gpus=(RTX_3090, GpuCard("GTX 1660", 6 * GIB)), cpu_slots=1)
    slots = cut_into_slots(node_number(1), machine)
    assert [(slot.tier, slot.vram_bytes) for slot in slots] == [
        ("rtx-3090", 24 * GIB),
        ("gtx-1660", 6 * GIB),
        (CPU_TIER, 0),
    ]


def test_every_slot_carries_its_nodes_place_and_isolation():
    machine = make_machine(region="IN")
    slots = cut_into_slots(node_number(5), machine)
    assert {(slot.node_id, slot.region, slot.isolation) for slot in slots} == {
        (node_number(5), "IN", machine.isolation)
    }


def test_with_more_slots_than_cores_every_slot_still_has_one():
    slots = cut_into_slots(node_number(1), make_machine(cores=2, cpu_slots=4))
    assert [slot.cores for slot in slots] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"gpus": (RTX_3090,), "cpu_slots": 0},
        {"cores": 1, "ram_bytes": 1, "disk_bytes": 0},
        {"cores": 4096, "ram_bytes": 1 << 50, "disk_bytes": 1 << 50},
        {"gpus": (RTX_3090,) * GPUS_MAX, "cpu_slots": CPU_SLOTS_MAX},
        {"gpus": (GpuCard("x" * 200, 0),)},
    ],
)
def test_a_machine_just_inside_the_limits_has_no_faults(change):
    assert list_machine_faults(make_machine(**change)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cores": 0}, "must be positive"),
        ({"ram_bytes": 0}, "must be positive"),
        ({"disk_bytes": -1}, "must be positive"),
        ({"gpus": (RTX_3090,) * (GPUS_MAX + 1)}, "at most 64 GPUs"),
        ({"cpu_slots": -1}, "at most 64 GPUs and 256 CPU slots"),
        ({"cpu_slots": CPU_SLOTS_MAX + 1}, "256 CPU slots"),
        ({"cpu_slots": 0}, "nothing to lend"),
        ({"gpus": (GpuCard("x", -1),)}, "negative VRAM"),
        ({"gpus": (GpuCard("x" * 201, 1),)}, "over-long name"),
        ({"gpus": (GpuCard("x", (1 << 50) + 1),)}, "larger than 2^50"),
        ({"ram_bytes": (1 << 50) + 1}, "larger than 2^50"),
        ({"disk_bytes": (1 << 50) + 1}, "larger than 2^50"),
        ({"cores": 4097}, "more than 4096 cores"),
    ],
)
def test_a_machine_just_outside_the_limits_has_one_fault(change, words):
    [fault] = list_machine_faults(make_machine(**change))
    assert words in fault


@pytest.mark.parametrize(
    ("name", "gib", "tier"),
    [
        ("NVIDIA GeForce RTX 5090", 32, "rtx-5090"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx-4090"),
        ("NVIDIA GeForce RTX 3090 Ti", 24, "rtx-3090"),
        ("NVIDIA GeForce RTX 4070 SUPER", 12, "rtx-4070"),
        ("NVIDIA GeForce RTX 3080", 10, "rtx-3080"),
        ("NVIDIA GeForce RTX 3060", 12, "rtx-3060"),
        ("NVIDIA GeForce RTX 3060 Ti", 8, "rtx-3060"),
        ("NVIDIA GeForce RTX 2070", 8, "rtx-2070"),
        ("NVIDIA GeForce GTX 1080 Ti", 11, "gtx-1080ti"),
        ("NVIDIA GeForce GTX 1080", 8, "gtx-1080"),
        ("NVIDIA GeForce GTX 1660 Ti", 6, "gtx-1660"),
        ("geforce rtx4090", 24, "rtx-4090"),
    ],
)
def test_a_card_has_the_tier_of_its_name(name, gib, tier):
    assert tier_of_gpu(name, gib * GIB) == tier


def test_a_1080_ti_is_not_a_1080_even_when_its_memory_is_that_of_one():
    assert tier_of_gpu("NVIDIA GeForce GTX 1080 Ti", 8 * GIB) == UNKNOWN_TIER


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("NVIDIA GeForce RTX 4090", 12),
        ("NVIDIA GeForce RTX 3090", 0),
        ("NVIDIA GeForce GTX 1080", 4),
    ],
)
def test_a_card_whose_memory_belies_its_name_has_no_tier(name, gib):
    assert tier_of_gpu(name, gib * GIB) == UNKNOWN_TIER


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Mobile",
        "NVIDIA GeForce GTX 1080 with Max-Q Design",
    ],
)
def test_a_laptops_card_is_not_the_desktops(name):
    assert tier_of_gpu(name, 32 * GIB) == UNKNOWN_TIER


@pytest.mark.parametrize("name", ["", "AMD Radeon RX 7900 XTX", "NVIDIA A100-SXM4-80GB", "RTX"])
def test_an_unheard_of_card_has_no_tier(name):
    assert tier_of_gpu(name, 80 * GIB) == UNKNOWN_TIER
