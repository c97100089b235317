"""What a job may wear on this node, by its owner's lists; and the lines that engines are given, as text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.wants import list_refused, list_wants
from computepool.node.outfit import Wardrobe, split_list
from computepool.node.packages import PackageCache
from computepool.node.refusal import Refused
from computepool.node.sandbox import engines
from computepool.node.sandbox.engines import DOCKER, GVISOR, PODMAN, Engine, Place
from computepool.node.sandbox.port import Limits, Report, SandboxRequest
from computepool.node.walls import Walls
from tests.support.agent_world import make_order

DIGEST = "@sha256:" + "a" * 64
SANDBOXED, CONTAINER, GVISOR_LEVEL = IsolationLevel.SANDBOXED, IsolationLevel.CONTAINER, IsolationLevel.GVISOR


def make_wardrobe(tmp_path: Path, *levels: tuple[str, IsolationLevel], **settings: Any) -> Wardrobe:
    walls = Walls(tuple(Report(name, level, usable=True) for name, level in levels or (("bubblewrap", SANDBOXED),)))
    packages = PackageCache(tmp_path, index_url=settings.pop("index_url", ""), bytes_max=10**6)
    return Wardrobe(walls, packages, **settings)


def refusal(wardrobe: Wardrobe, **order: Any) -> Cause | None:
    try:
        wardrobe.check(make_order(**order))
    except Refused as refused:
        return refused.ending.cause
    return None


ENGINES = (("bubblewrap", SANDBOXED), ("podman", CONTAINER))
WITHOUT_WAY_OUT = (("bubblewrap", SANDBOXED), ("docker", CONTAINER))


@pytest.mark.parametrize(
    "levels", [ENGINES, ENGINES[:1], ENGINES[1:], WITHOUT_WAY_OUT], ids=["both", "bubblewrap", "podman", "docker"]
)
@pytest.mark.parametrize("index_url", ["", "https://pypi.org/simple"])
@pytest.mark.parametrize(
    "order",
    [
        {"image": "ghcr.io/team/x" + DIGEST, "isolation": CONTAINER},
        {"image": "ghcr.io/other/x" + DIGEST, "isolation": CONTAINER},
        {"egress": ("a.example.org:443",)},
        {"egress": ("a.example.org:443", "b.example.com:443")},
        {"packages": ("numpy",)},
        {"packages": ("numpy",), "egress": ("a.example.org:443",)},
        {"egress": ("a.example.org:443",), "isolation": CONTAINER},
        {"image": "ghcr.io/team/x" + DIGEST, "egress": ("a.example.org:443",), "isolation": CONTAINER},
    ],
)
def test_what_the_hub_is_told_is_what_would_not_be_refused(
    tmp_path: Path, levels: tuple[tuple[str, IsolationLevel], ...], index_url: str, order: dict[str, Any]
) -> None:
    """One rule in both places: what placement lets through, the node takes."""
    lists = {"images_allowed": ("ghcr.io/team/*",), "egress_allowed": ("*.example.org:443",)}
    wardrobe = make_wardrobe(tmp_path, *levels, index_url=index_url, **lists)
    isolation = order.get("isolation", SANDBOXED)
    wants = list_wants(
        image=order.get("image"),
        egress=order.get("egress", ()),
        packages=order.get("packages", ()),
        isolation=isolation,
    )
    is_sent = not list_refused(wants, wardrobe.list_allows()) and wardrobe.walls.level.meets(isolation)
    assert is_sent == (refusal(wardrobe, **order) is None)


def test_images_are_those_of_the_owners_list(tmp_path: Path) -> None:
    both = (("bubblewrap", SANDBOXED), ("podman", CONTAINER))
    closed = make_wardrobe(tmp_path, *both)
    open_one = make_wardrobe(tmp_path, *both, images_allowed=("ghcr.io/team/*", "python" + DIGEST))

    assert refusal(closed, image="ghcr.io/team/x" + DIGEST) is Cause.NOT_ALLOWED
    assert refusal(open_one, image="ghcr.io/team/x" + DIGEST) is None
    assert refusal(open_one, image="ghcr.io/other/x" + DIGEST) is Cause.NOT_ALLOWED
    assert refusal(open_one, image="python" + DIGEST) is None
    assert refusal(open_one, image="python@sha256:" + "b" * 64) is Cause.NOT_ALLOWED


def test_image_without_an_engine_is_the_nodes_refusal(tmp_path: Path) -> None:
    assert refusal(make_wardrobe(tmp_path, images_allowed=("*",)), image="x" + DIGEST) is Cause.SANDBOX_REFUSED


def test_hosts_are_those_of_the_owners_list(tmp_path: Path) -> None:
    wardrobe = make_wardrobe(tmp_path, ("podman", CONTAINER), egress_allowed=("*.example.org:443",))

    assert refusal(wardrobe, egress=("a.example.org:443",)) is None
    assert refusal(wardrobe, egress=("a.example.org:443", "b.example.com:443")) is Cause.NOT_ALLOWED


def test_level_that_no_tested_sandbox_gives_is_refused(tmp_path: Path) -> None:
    wardrobe = make_wardrobe(tmp_path)

    assert refusal(wardrobe) is None
    assert refusal(wardrobe, isolation=CONTAINER) is Cause.SANDBOX_REFUSED


def test_packages_need_an_index(tmp_path: Path) -> None:
    assert refusal(make_wardrobe(tmp_path), packages=("numpy",)) is Cause.NOT_ALLOWED
    assert refusal(make_wardrobe(tmp_path, index_url="https://index"), packages=("numpy",)) is None


def test_job_wears_the_lightest_walls_that_do(tmp_path: Path) -> None:
    wardrobe = make_wardrobe(tmp_path, ("bubblewrap", SANDBOXED), ("podman", CONTAINER), ("gvisor", GVISOR_LEVEL))

    chosen = {level: asyncio.run(wardrobe.prepare(make_order(isolation=level))).backend for level in IsolationLevel}
    assert chosen == {SANDBOXED: "bubblewrap", CONTAINER: "podman", GVISOR_LEVEL: "gvisor"}


def test_settings_of_several_words_take_commas_and_spaces() -> None:
    assert split_list(" a, b c,,") == ("a", "b", "c")
    assert split_list("") == ()


def write(engine: Engine, **changes: Any) -> list[str]:
    limits = Limits(64 << 20, 16, 1.0, 1 << 20, 1.0, 1000)
    request = SandboxRequest("n", ("python3", "x.py"), {"SECRET": "word"}, (), limits, "/state", **changes)
    place = Place(
        "/run/computepool/n", "/computepool-n", "/p.json", "/state/environment", 5_000, changes.get("image") or "sys"
    )
    return engines.write_run(engine, ["engine"], request, place)


@pytest.mark.parametrize("engine", [PODMAN, DOCKER, GVISOR], ids=lambda engine: engine.name)
def test_every_engine_is_told_to_close_every_door(engine: Engine) -> None:
    line = " ".join(write(engine))

    for wall in (
        *("--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", "--pull never"),
        *("--security-opt seccomp=/p.json", "--cgroup-parent /computepool-n", "--ipc none", "--no-healthcheck"),
        *("--entrypoint  --init", "--env-file /state/environment", "--ulimit core=0:0"),
    ):
        assert wall in line
    assert "privileged" not in line.replace("no-new-privileges", "")
    assert "word" not in line


def test_podman_gives_the_job_user_ids_of_its_own() -> None:
    assert "--uidmap 0:5000:65536" in " ".join(write(PODMAN))
    assert "--user 65534:65534" in " ".join(write(PODMAN))
    assert "--user 5000:5000" in " ".join(write(DOCKER))


def test_one_card_is_shown_in_each_engines_own_way() -> None:
    card = ("/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm")

    assert "--gpus device=2" in " ".join(write(DOCKER, devices=card))
    assert "--device nvidia.com/gpu=2" in " ".join(write(PODMAN, devices=card))
    assert "--device /dev/kfd --device /dev/dri/renderD128" in " ".join(
        write(PODMAN, devices=("/dev/kfd", "/dev/dri/renderD128"))
    )


def test_image_runs_its_command_without_our_shell() -> None:
    assert write(PODMAN, image="x" + DIGEST)[-3:] == ["x" + DIGEST, "python3", "x.py"]
    assert "/bin/sh" in write(PODMAN)
