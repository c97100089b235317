"""What the agent makes of the texts that machines print, recorded ones and broken ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from computepool.core.placement.tier import tier_of_gpu
from computepool.node.hardware.cpu import (
    UnreadableMachine,
    parse_core_count,
    parse_cpu_name,
    parse_instruction_set,
    parse_ram_bytes,
)
from computepool.node.hardware.detect import Lending, describe, detect
from computepool.node.hardware.nvidia import parse_nvidia_smi
from computepool.node.hardware.profiles import UnknownProfile, get_profile_path, list_profiles, read_profile

MIB = 1 << 20


def test_one_card_is_read() -> None:
    gpu = parse_nvidia_smi("0, NVIDIA GeForce RTX 4090, 24564, 550.54.14\n").cards[0]
    assert (gpu.name, gpu.vram_bytes, gpu.driver) == ("NVIDIA GeForce RTX 4090", 24564 * MIB, "550.54.14")


def test_several_cards_keep_their_order() -> None:
    printed = "0, NVIDIA GeForce RTX 3090, 24576, 535.183.01\n1, NVIDIA GeForce GTX 1080 Ti, 11264, 535.183.01\n"
    assert [gpu.vram_bytes // MIB for gpu in parse_nvidia_smi(printed).cards] == [24576, 11264]


@pytest.mark.parametrize(
    "printed",
    [
        "0, NVIDIA GB10, [N/A], 580.95.05\n",
        "0, NVIDIA GeForce RTX 3060, [GPU requires reset], 535.171.04\n",
        "0, [Unknown Error], [Unknown Error], [Unknown Error]\n",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest\n",
        "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n",
    ],
)
def test_a_card_that_cannot_be_read_is_left_out_with_a_remark(printed: str) -> None:
    reading = parse_nvidia_smi(printed)
    assert reading.cards == ()
    assert len(reading.remarks) == 1


def test_a_broken_card_does_not_hide_its_neighbour() -> None:
    reading = parse_nvidia_smi("0, NVIDIA A, [N/A], 550\n1, NVIDIA GeForce RTX 3060, 12288, 550\n")
    assert [gpu.name for gpu in reading.cards] == ["NVIDIA GeForce RTX 3060"]
    assert "card 0" in reading.remarks[0].what


def test_an_unknown_driver_version_is_left_empty() -> None:
    assert parse_nvidia_smi("0, NVIDIA X, 8192, [N/A]\n").cards[0].driver == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD Ryzen 7  5800X\nmodel name\t: other\n", "AMD Ryzen 7 5800X"),
        ("processor\t: 0\nBogoMIPS\t: 108\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("processor\t: 0\n", ""),
    ],
)
def test_the_processors_name_is_found_where_there_is_one(text: str, name: str) -> None:
    assert parse_cpu_name(text) == name


V2 = "popcnt sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma movbe"


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "expected"),
    [
        (f"vendor_id\t: AuthenticAMD\nflags\t\t: fpu {V3}\n", "x86_64", "x86_64-v3-AuthenticAMD"),
        (
            f"vendor_id : GenuineIntel\nflags : {V3} avx512f avx512bw avx512cd avx512dq avx512vl\n",
            "x86_64",
            "x86_64-v4-GenuineIntel",
        ),
        (f"flags : {V2}\n", "x86_64", "x86_64-v2"),
        ("Features\t: fp asimd sve\n", "aarch64", "aarch64-sve"),
        ("Features\t: fp asimd\n", "aarch64", "aarch64"),
        ("", "arm64", "arm64"),
    ],
)
def test_what_a_processor_computes_with_is_told(cpuinfo: str, machine: str, expected: str) -> None:
    assert parse_instruction_set(cpuinfo, machine) == expected


@pytest.mark.parametrize(("listed", "count"), [("0", 1), ("0-15", 16), ("0-3,8,10-11", 7)])
def test_usable_cores_are_counted_from_their_list(listed: str, count: int) -> None:
    assert parse_core_count(f"Name:\tx\nCpus_allowed_list:\t{listed}\nMems_allowed:\t1\n") == count


def test_a_machine_that_does_not_tell_is_not_guessed() -> None:
    with pytest.raises(UnreadableMachine):
        parse_core_count("Name:\tx\n")
    with pytest.raises(UnreadableMachine):
        parse_core_count("Cpus_allowed_list:\tall\n")
    with pytest.raises(UnreadableMachine):
        parse_ram_bytes("MemFree: 1 kB\n")


def test_memory_is_read_in_bytes() -> None:
    assert parse_ram_bytes("MemTotal:       65586044 kB\nMemFree: 1 kB\n") == 65586044 * 1024


@pytest.mark.parametrize(
    ("name", "mebibytes", "tier"),
    [
        ("rtx-4090", 24564, "rtx-4090"),
        ("rtx-3090", 24576, "rtx-3090"),
        ("rtx-4070", 12282, "rtx-4070"),
        ("rtx-3060", 12288, "rtx-3060"),
    ],
)
def test_a_played_card_takes_the_same_way_and_is_marked(name: str, mebibytes: int, tier: str) -> None:
    detected = detect(get_profile_path(name))
    gpu = detected.hardware.gpus[0]
    assert detected.synthetic
    assert gpu.vram_bytes == mebibytes * MIB
    assert tier_of_gpu(gpu.name, gpu.vram_bytes) == tier
    assert detected.remarks == ()


def test_a_played_machine_without_gpu_says_so() -> None:
    detected = detect(get_profile_path("cpu-only"))
    assert detected.synthetic
    assert detected.hardware.gpus == ()
    assert "only the CPU" in detected.remarks[0]


def test_every_shipped_profile_can_be_read() -> None:
    assert len(list_profiles()) == 5
    for name in list_profiles():
        hardware = detect(get_profile_path(name)).hardware
        assert hardware.cores >= 8
        assert hardware.ram_bytes > 30e9
        assert hardware.disk_bytes > 100e9
        assert hardware.cpu_name


def test_an_unknown_profile_is_named_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownProfile, match="rtx-4090"):
        get_profile_path("rtx-9090")
    broken = tmp_path / "broken.toml"
    broken.write_text("cores = 3\n")
    with pytest.raises(UnknownProfile, match="broken"):
        read_profile(get_profile_path(str(broken)))


def test_the_owner_may_lend_less_than_there_is() -> None:
    texts = read_profile(get_profile_path("rtx-4090"))
    lending = Lending(cpu_slots=3, cores_max=4, ram_bytes_max=8 * 10**9, disk_bytes_max=10**9)
    hardware = describe(texts, lending).hardware
    assert (hardware.cpu_slots, hardware.cores, hardware.ram_bytes, hardware.disk_bytes) == (3, 4, 8 * 10**9, 10**9)


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    detected = detect(None, disk_of=tmp_path)
    assert not detected.synthetic
    assert detected.hardware.cores == len(os.sched_getaffinity(0))
