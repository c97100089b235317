"""Cards of every vendor, from what real drivers and tools say: written down in their formats, broken ones too.

NVIDIA's library is played by a stand-in built from C; sysfs and tools by files in a folder of the test.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from computepool.core.placement.tier import tier_of_gpu
from computepool.node.hardware import amd, apple, intel, nvidia
from computepool.node.hardware.detect import detect
from computepool.node.hardware.port import Reading, Sight
from computepool.node.hardware.region import find_region
from computepool.node.hardware.vendors import read_cards
from tests.support import nvml_stand_in

GIB = 1 << 30
MIB = 1 << 20


class Lab:
    """A machine made of files: sysfs and /proc under `root`, tools in `bin`."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        self.root.mkdir()
        self.bin.mkdir()

    @property
    def sight(self) -> Sight:
        return Sight(self.root, tools=str(self.bin), tool_seconds=5.0)

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def add_tool(self, name: str, script: str) -> None:
        program = self.bin / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def add_device(self, address: str, *, vendor: int, device: int, driver: str, **files: object) -> str:
        folder = f"/sys/bus/pci/devices/{address}"
        self.write(f"{folder}/class", "0x030000\n")
        self.write(f"{folder}/vendor", f"{vendor:#06x}\n")
        self.write(f"{folder}/device", f"{device:#06x}\n")
        for name, text in files.items():
            self.write(f"{folder}/{name}", f"{text}\n")
        if driver:
            (self.root / folder.lstrip("/") / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        return folder


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_stand_in.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def play(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Plays these cards to every process that asks NVIDIA's library from now on."""

    def play(*lines: str) -> None:
        (tmp_path / "cards").write_text("\n".join(lines) + "\n")
        for name, value in nvml_stand_in.make_env(library, tmp_path / "cards").items():
            monkeypatch.setenv(name, value)

    return play


def say(reading: Reading) -> str:
    return " ".join(str(remark) for remark in reading.remarks)


# NVIDIA


@pytest.mark.parametrize(
    ("name", "mebibytes", "tier"),
    [
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("NVIDIA GeForce RTX 3060", 12288, "rtx-3060"),
        ("NVIDIA GeForce GTX 1080 Ti", 11264, "gtx-1080ti"),
        ("GeForce GTX 1080", 8192, "gtx-1080"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "unknown"),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", 16384, "unknown"),
        ("ASUS NVIDIA GeForce RTX 3090 OC", 24576, "rtx-3090"),
        ("NVIDIA GeForce RTX 3060", 4096, "unknown"),
        ("NVIDIA RTX A2000 12GB", 12282, "unknown"),
    ],
)
def test_a_cards_memory_is_the_librarys_word_and_never_the_names(play, lab, name, mebibytes, tier):
    play("driver|550.54.14", "cuda|12040", f"card|{name}|GPU-1|{mebibytes * MIB}|0")
    (card,) = nvidia.read(lab.sight).cards
    assert (card.name, card.vram_bytes, card.driver, card.runtime) == (
        name,
        mebibytes * MIB,
        "550.54.14",
        "CUDA 12.4",
    )
    assert tier_of_gpu(card.name, card.vram_bytes) == tier


def test_two_cards_keep_their_order_and_their_uuids(play, lab):
    play("driver|535", f"card|A|GPU-a|{GIB}|0", f"card|B|GPU-b|{2 * GIB}|0")
    assert [card.address for card in nvidia.read(lab.sight).cards] == ["GPU-a", "GPU-b"]


def test_a_lost_card_is_left_out_with_its_fix_and_its_neighbour_stays(play, lab):
    play("driver|535", f"card|A|GPU-a|{GIB}|15", f"card|B|GPU-b|{GIB}|0")
    reading = nvidia.read(lab.sight)
    assert [card.name for card in reading.cards] == ["B"]
    assert "dropped off the bus" in say(reading)
    assert "Restart" in say(reading)


def test_a_card_whose_memory_is_not_told_is_not_guessed(play, lab):
    play("driver|580", "card|NVIDIA GB10|GPU-a|0|3")
    reading = nvidia.read(lab.sight)
    assert reading.cards == ()
    assert "card 0 (NVIDIA GB10) cannot be read: Not Supported" in say(reading)


@pytest.mark.parametrize(
    ("code", "words", "fix"),
    [
        (4, "may not ask", "usermod"),
        (9, "not loaded", "modprobe"),
        (18, "old one still runs", "Restart"),
        (999, "unknown error", "Restart"),
    ],
)
def test_a_driver_that_does_not_work_is_told_in_plain_words(play, lab, code, words, fix):
    play(f"init|{code}")
    reading = nvidia.read(lab.sight)
    assert words in say(reading)
    assert fix in say(reading)


def test_a_driver_that_hangs_is_cut_off(play, lab):
    play("init|hang")
    reading = nvidia.read(Sight(lab.root, tools=str(lab.bin), tool_seconds=0.5))
    assert "did not answer" in say(reading)


def test_the_instances_of_a_cut_card_are_cards_and_the_whole_is_not(play, lab):
    play(
        "driver|550",
        f"card|NVIDIA A100-SXM4-40GB|GPU-a|{40 * GIB}|0",
        f"mig|0|NVIDIA A100-SXM4-40GB MIG 1g.5gb|MIG-1|{5 * GIB}",
        f"mig|0|NVIDIA A100-SXM4-40GB MIG 2g.10gb|MIG-2|{10 * GIB}",
    )
    cards = nvidia.read(lab.sight).cards
    assert [(card.address, card.vram_bytes // GIB) for card in cards] == [("MIG-1", 5), ("MIG-2", 10)]


def test_a_card_that_is_cut_into_nothing_is_explained(play, lab):
    play("driver|550", f"card|NVIDIA H100|GPU-a|{80 * GIB}|0", "mig|0")
    reading = nvidia.read(lab.sight)
    assert reading.cards == ()
    assert "nvidia-smi mig -cgi" in say(reading)


def test_under_wsl_the_fix_is_a_driver_for_windows(play, lab):
    lab.write("/proc/version", "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@x) (gcc 11.2.0)\n")
    play("init|9")
    assert "driver in Windows" in say(nvidia.read(lab.sight))


def test_wsl_with_a_gpu_and_without_the_library_is_explained(lab):
    lab.write("/proc/version", "Linux version 5.15.90.1-microsoft-standard-WSL2\n")
    lab.write("/dev/dxg", "")
    assert "wsl --update" in say(nvidia.read(lab.sight))


SMI = "echo '0, NVIDIA GeForce GTX 1080 Ti, 11264, 470.256.02'"


def test_nvidia_smi_is_asked_where_the_library_is_not(lab):
    lab.add_tool("nvidia-smi", SMI)
    (card,) = nvidia.read(lab.sight).cards
    assert (card.vram_bytes, card.driver) == (11264 * MIB, "470.256.02")


def test_nvidia_smi_does_not_promise_a_cut_card_whole(lab):
    cut = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5)\\n  MIG 1g.5gb     Device  0: (UUID: MIG-7)"
    lab.add_tool("nvidia-smi", f'case "$1" in -L) printf "{cut}\\n";; *) {SMI};; esac')
    reading = nvidia.read(lab.sight)
    assert reading.cards == ()
    assert "MIG" in say(reading)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9", "code 9"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("exit 1", "no reason"),
        ("exec sleep 60", "did not answer"),
    ],
)
def test_a_broken_nvidia_smi_is_explained(lab, script, words):
    lab.add_tool("nvidia-smi", script)
    reading = nvidia.read(Sight(lab.root, tools=f"{lab.bin}:/usr/bin:/bin", tool_seconds=0.5))
    assert reading.cards == ()
    assert words in say(reading)


@pytest.mark.parametrize(
    ("driver", "words"), [("nouveau", "nouveau"), ("", "no working driver"), ("vfio-pci", "virtual machine")]
)
def test_a_card_that_nobody_drives_is_seen_all_the_same(lab, driver, words):
    lab.add_device("0000:01:00.0", vendor=0x10DE, device=0x2684, driver=driver)
    reading = nvidia.read(lab.sight)
    assert reading.cards == ()
    assert words in say(reading)
    assert "0000:01:00.0" in say(reading)


def test_a_jetson_shares_its_memory(lab):
    lab.write("/proc/device-tree/model", "NVIDIA Jetson Orin Nano Developer Kit\0")
    lab.write("/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\n")
    lab.write("/proc/meminfo", f"MemTotal:       {8 * GIB // 1024} kB\n")
    lab.write("/dev/nvhost-gpu", "")
    (card,) = nvidia.read(lab.sight).cards
    assert (card.vram_bytes, card.driver) == (4 * GIB, "L4T 36.4.3")
    (lab.root / "dev/nvhost-gpu").unlink()
    assert "JetPack" in say(nvidia.read(lab.sight))


# AMD


def test_an_amd_card_is_read_from_its_driver_and_named_by_libdrm(lab):
    lab.add_device(
        "0000:03:00.0",
        vendor=0x1002,
        device=0x744C,
        driver="amdgpu",
        revision="0xc8",
        mem_info_vram_total=25753026560,
    )
    lab.write(
        "/usr/share/libdrm/amdgpu.ids", "# List\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tother\n"
    )
    lab.write("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    lab.write("/opt/rocm/.info/version", "6.2.0-66\n")
    lab.write("/dev/kfd", "")
    reading = amd.read(lab.sight)
    (card,) = reading.cards
    assert (card.name, card.vram_bytes, card.runtime) == ("AMD Radeon RX 7900 XTX", 25753026560, "ROCm 6.2.0-66")
    assert reading.remarks == ()


def test_an_amd_card_without_rocm_is_found_and_the_fix_is_told(lab):
    lab.add_device("0000:03:00.0", vendor=0x1002, device=0x73BF, driver="amdgpu", mem_info_vram_total=16 * GIB)
    reading = amd.read(lab.sight)
    assert [card.name for card in reading.cards] == ["AMD graphics 73bf"]
    assert "render" in say(reading)


@pytest.mark.parametrize("driver", ["radeon", ""])
def test_an_amd_card_under_another_driver_is_not_lent(lab, driver):
    lab.add_device("0000:03:00.0", vendor=0x1002, device=0x6810, driver=driver)
    reading = amd.read(lab.sight)
    assert reading.cards == ()
    assert "amdgpu" in say(reading)


ROCM = {
    "card0": {"VRAM Total Memory (B)": "17163091968", "Card Series": "Radeon RX 6800 XT", "Card Model": "0x73bf"},
    "card1": {"VRAM Total Memory (B)": "N/A", "Card series": "N/A", "Card model": "0x1681"},
    "system": {"Driver version": "6.3.6"},
}


def test_rocm_smi_is_asked_where_sysfs_is_not(lab):
    lab.add_tool(
        "rocm-smi", f"echo 'WARNING: AMD GPU device(s) is/are in a low-power state.'; echo '{json.dumps(ROCM)}'"
    )
    reading = amd.read(lab.sight)
    (card,) = reading.cards
    assert (card.name, card.vram_bytes, card.driver) == ("Radeon RX 6800 XT", 17163091968, "6.3.6")
    assert "card1" in say(reading)
    assert amd.parse_rocm_smi("no json").cards == ()


# Intel, Apple


def test_an_intel_card_with_memory_is_read_and_the_processors_graphics_are_not(lab):
    lab.add_device("0000:00:02.0", vendor=0x8086, device=0x4680, driver="i915")
    folder = lab.add_device("0000:03:00.0", vendor=0x8086, device=0x56A0, driver="i915")
    lab.write(f"{folder}/drm/card1/lmem_total_bytes", f"{16 * GIB}\n")
    reading = intel.read(lab.sight)
    assert [card.vram_bytes for card in reading.cards] == [16 * GIB]
    assert reading.remarks == ()


def test_an_intel_card_of_an_old_kernel_is_explained(lab):
    lab.add_device("0000:03:00.0", vendor=0x8086, device=0x56A0, driver="i915")
    assert "Update the kernel" in say(intel.read(lab.sight))


M2 = {"sppci_model": "Apple M2 Pro", "spdisplays_mtlgpufamilysupport": "spdisplays_metal3", "sppci_cores": "19"}
RADEON = {"sppci_model": "AMD Radeon Pro 5500M", "spdisplays_vendor": "sppci_vendor_amd", "spdisplays_vram": "8 GB"}
IRIS = {"sppci_model": "Intel UHD Graphics 630", "spdisplays_vram_shared": "1536 MB"}


def test_an_apple_chip_counts_half_of_the_machines_memory(lab):
    said = {"SPDisplaysDataType": [{**M2, "spdisplays_vendor": "sppci_vendor_Apple"}]}
    lab.add_tool("system_profiler", f"echo '{json.dumps(said)}'")
    lab.add_tool("sysctl", f"echo {16 * GIB}")
    lab.add_tool("sw_vers", "echo 14.5")
    (card,) = apple.read(lab.sight).cards
    assert (card.vendor, card.vram_bytes, card.driver, card.runtime) == ("apple", 8 * GIB, "macOS 14.5", "Metal")


def test_an_older_macs_card_has_its_own_memory_and_shared_graphics_are_not_lent():
    reading = apple.parse_displays(json.dumps({"SPDisplaysDataType": [RADEON, IRIS]}), ram_bytes=GIB, version="13.6")
    assert [(card.vendor, card.vram_bytes) for card in reading.cards] == [("amd", 8 * GIB)]
    assert "shares the memory" in say(reading)
    assert "Update macOS" in say(apple.parse_displays("[]", ram_bytes=0, version=""))


# All of them


def test_all_vendors_of_a_mixed_machine_are_found(play, lab):
    play("driver|550", f"card|NVIDIA GeForce RTX 3060|GPU-a|{12 * GIB}|0")
    lab.add_device("0000:03:00.0", vendor=0x1002, device=0x73BF, driver="amdgpu", mem_info_vram_total=16 * GIB)
    assert [card.vendor for card in read_cards(lab.sight).cards] == ["nvidia", "amd"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_played_library_reaches_what_the_node_declares(play, tmp_path):
    play("driver|550.54.14", "cuda|12040", f"card|NVIDIA GeForce RTX 4090|GPU-secret|{24564 * MIB}|0")
    detected = detect(None, disk_of=tmp_path)
    (gpu,) = detected.hardware.gpus
    assert (gpu.name, gpu.vendor, gpu.runtime) == ("NVIDIA GeForce RTX 4090", "nvidia", "CUDA 12.4")
    assert not detected.synthetic
    assert "GPU-secret" not in repr(detected.hardware)


def test_a_machine_without_anything_says_nothing(lab):
    assert read_cards(lab.sight) == Reading()


@pytest.mark.parametrize(
    ("zone", "region"), [("Asia/Kolkata", "IN"), ("Europe/Berlin", "DE"), ("Etc/UTC", None), ("", None)]
)
def test_the_country_follows_from_the_time_zone(lab, zone, region):
    lab.write(
        "/usr/share/zoneinfo/zone.tab", "# tab\nIN\t+2232+08822\tAsia/Kolkata\nDE\t+5230+01322\tEurope/Berlin\tmost\n"
    )
    lab.write("/etc/timezone", f"{zone}\n")
    assert find_region(lab.sight) == region


def test_the_country_follows_from_the_link_of_the_clock_too(lab):
    lab.write("/usr/share/zoneinfo/zone.tab", "IN\t+2232+08822\tAsia/Kolkata\n")
    lab.write("/etc/hostname", "x")
    (lab.root / "etc/localtime").symlink_to("/usr/share/zoneinfo/Asia/Kolkata")
    assert find_region(lab.sight) == "IN"
