"""Both versions of control groups, against folders that stand for the kernel's file system."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from computepool.node.sandbox import cgroup_files, cgroup_v1, cgroup_v2, cgroups
from computepool.node.sandbox.port import Limits, SandboxRefused

LIMITS = Limits(64 << 20, 30, 1.5, 1 << 20, 10.0, 1000)
V2_FILES = ("cgroup.procs", "cgroup.kill", "memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max")
V1_FILES = (
    *("cgroup.procs", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.swappiness", "pids.max"),
    *("cpu.cfs_period_us", "cpu.cfs_quota_us"),
)


def make_group(path: Path, files: tuple[str, ...]) -> Path:
    """As the kernel does it: a new directory is born with its files."""
    path.mkdir(parents=True, exist_ok=True)
    for name in files:
        (path / name).touch()
    return path


def v2_site(base: Path, files: tuple[str, ...] = V2_FILES) -> cgroup_v2.V2Site:
    return cgroup_v2.V2Site(str(base), mkdir=lambda path: make_group(Path(path), files), rmdir=shutil.rmtree)  # type: ignore[arg-type, return-value]


def v1_site(base: Path, files: tuple[str, ...] = V1_FILES) -> cgroup_v1.V1Site:
    bases = {name: str(base / name) for name in cgroup_v1.CONTROLLERS}
    return cgroup_v1.V1Site(bases, mkdir=lambda path: make_group(Path(path), files), rmdir=shutil.rmtree)  # type: ignore[arg-type, return-value]


def make_machine(tmp_path: Path, *, mounts: list[tuple[str, Path, str]], own: str) -> str:
    """A /proc/self with these cgroup mounts: (kind, mount point, options)."""
    proc = tmp_path / "proc"
    proc.mkdir()
    lines = [f"30 24 0:26 / {point} rw,nosuid - {kind} cgroup {options}" for kind, point, options in mounts]
    (proc / "mountinfo").write_text("22 27 0:21 / /proc rw,relatime - proc proc rw\n" + "\n".join(lines) + "\n")
    (proc / "cgroup").write_text(own)
    return str(proc)


def make_v2_machine(tmp_path: Path, own: str, *, controllers: str = "cpu io memory pids") -> tuple[str, Path]:
    top = make_group(tmp_path / "fs", ("cgroup.procs",))
    for path in (top, top / own.lstrip("/")):
        make_group(path, ("cgroup.procs", "cgroup.subtree_control"))
        (path / "cgroup.controllers").write_text(controllers)
    return make_machine(tmp_path, mounts=[("cgroup2", top, "rw")], own=f"0::{own}\n"), top


def test_v2_group_gets_every_limit(tmp_path: Path) -> None:
    group = v2_site(tmp_path).create("job", LIMITS)
    path = tmp_path / "computepool-job"

    assert group.paths == (str(path),)
    assert (path / "memory.max").read_text() == str(64 << 20)
    assert (path / "memory.swap.max").read_text() == "0"
    assert (path / "memory.oom.group").read_text() == "1"
    assert (path / "pids.max").read_text() == "32"
    assert (path / "cpu.max").read_text() == "150000 100000"
    group.remove()
    assert not path.exists()


def test_v2_group_without_swap_files_is_still_made(tmp_path: Path) -> None:
    files = tuple(name for name in V2_FILES if not name.startswith(("memory.swap", "memory.oom")))

    assert v2_site(tmp_path, files).create("job", LIMITS).paths


def test_v2_group_without_a_memory_limit_is_refused_and_removed(tmp_path: Path) -> None:
    files = tuple(name for name in V2_FILES if name != "memory.max")

    with pytest.raises(SandboxRefused, match=r"memory\.max"):
        v2_site(tmp_path, files).create("job", LIMITS)
    assert list(tmp_path.iterdir()) == []


def test_v2_usage_is_read_from_the_kernels_tables(tmp_path: Path) -> None:
    path = make_group(tmp_path / "computepool-job", ())
    (path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n")
    (path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\noom_group_kill 1\n")
    (path / "memory.current").write_text("1000\n")
    group = cgroup_v2.V2Cgroup(str(path))
    assert group.usage() == (2.5, 1000, 2)

    (path / "memory.peak").write_text("9000\n")
    assert group.usage().memory_bytes_peak == 9000


def test_v2_kill_uses_the_kernels_own_switch(tmp_path: Path) -> None:
    path = make_group(tmp_path / "computepool-job", V2_FILES)
    cgroup_v2.V2Cgroup(str(path)).kill()

    assert (path / "cgroup.kill").read_text() == "1"


def test_v2_root_works_under_the_top(tmp_path: Path) -> None:
    proc, top = make_v2_machine(tmp_path, "/system.slice/agent.service")
    site = cgroups.find_site(proc, uid=0)

    assert site == cgroup_v2.V2Site(str(top))
    assert (top / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_v2_plain_user_works_in_the_group_delegated_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "/user.slice/agent.scope"
    proc, top = make_v2_machine(tmp_path, own)
    scope = top / own.lstrip("/")
    (scope / "cgroup.procs").write_text("101\n102\n")
    moved: list[str] = []
    real_write = cgroup_files.write

    def kernel_write(path: str, name: str, value: int | str) -> None:
        """The rule of version 2: a group with processes may not limit children."""
        if name == "cgroup.subtree_control" and len(moved) < 2:
            raise OSError(errno.EBUSY, "Device or resource busy", os.path.join(path, name))
        if name == "cgroup.procs":
            assert path == str(scope / cgroup_v2.AGENT_LEAF)
            moved.append(str(value))
            return
        real_write(path, name, value)

    monkeypatch.setattr(cgroup_v2, "write", kernel_write)
    site = cgroups.find_site(proc, uid=1000)

    assert site == cgroup_v2.V2Site(str(scope))
    assert moved == ["101", "102"]
    assert (scope / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_v2_runner_in_the_agents_leaf_makes_groups_beside_it(tmp_path: Path) -> None:
    own = f"/user.slice/agent.scope/{cgroup_v2.AGENT_LEAF}"
    proc, top = make_v2_machine(tmp_path, own)
    scope = make_group(top / "user.slice" / "agent.scope", ("cgroup.procs",))
    (scope / "cgroup.controllers").write_text("cpu memory pids")
    (scope / "cgroup.subtree_control").write_text("cpu memory pids")

    assert cgroups.find_site(proc, uid=1000) == cgroup_v2.V2Site(str(scope))


def test_v2_group_without_the_cpu_controller_is_refused_in_plain_words(tmp_path: Path) -> None:
    own = "/user.slice/agent.scope"
    proc, top = make_v2_machine(tmp_path, own)
    (top / own.lstrip("/") / "cgroup.controllers").write_text("memory pids")

    with pytest.raises(SandboxRefused, match=r"lacks the controllers cpu.*Delegate=yes"):
        cgroups.find_site(proc, uid=1000)


def test_hybrid_layout_falls_back_to_v1(tmp_path: Path) -> None:
    unified = make_group(tmp_path / "fs" / "unified", ("cgroup.procs",))
    (unified / "cgroup.controllers").write_text("hugetlb")
    mounts = [("cgroup2", unified, "rw")]
    for name in cgroup_v1.CONTROLLERS:
        mounts.append(("cgroup", make_group(tmp_path / "fs" / name, ("cgroup.procs",)), f"rw,{name}"))
    proc = make_machine(tmp_path, mounts=mounts, own="4:memory:/\n3:pids:/\n2:cpu:/\n1:cpuacct:/\n0::/\n")
    site = cgroups.find_site(proc, uid=0)

    assert site.version == 1
    assert site.plan_paths("job") == tuple(
        str(tmp_path / "fs" / name / "computepool-job") for name in cgroup_v1.CONTROLLERS
    )


def test_v1_controllers_may_share_one_hierarchy(tmp_path: Path) -> None:
    shared = make_group(tmp_path / "fs" / "cpu,cpuacct", ("cgroup.procs",))
    mounts = [("cgroup", shared, "rw,cpu,cpuacct")]
    for name in ("memory", "pids"):
        mounts.append(("cgroup", make_group(tmp_path / "fs" / name, ("cgroup.procs",)), f"rw,{name}"))
    proc = make_machine(tmp_path, mounts=mounts, own="2:cpu,cpuacct:/\n3:memory:/\n4:pids:/\n")

    assert len(cgroups.find_site(proc, uid=0).plan_paths("job")) == 3


def test_v1_machine_without_a_pids_controller_is_refused(tmp_path: Path) -> None:
    mounts = [("cgroup", make_group(tmp_path / "fs" / "memory", ("cgroup.procs",)), "rw,memory")]
    proc = make_machine(tmp_path, mounts=mounts, own="3:memory:/\n")

    with pytest.raises(SandboxRefused, match="pids"):
        cgroups.find_site(proc, uid=0)


def test_v1_group_gets_every_limit(tmp_path: Path) -> None:
    group = v1_site(tmp_path).create("job", LIMITS)

    assert Path(group.memory, "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert Path(group.memory, "memory.memsw.limit_in_bytes").read_text() == str(64 << 20)
    assert Path(group.pids, "pids.max").read_text() == "32"
    assert Path(group.cpu, "cpu.cfs_quota_us").read_text() == "150000"
    group.remove()
    assert not any(Path(path).exists() for path in group.paths)


def test_v1_group_without_swap_accounting_is_told_not_to_swap(tmp_path: Path) -> None:
    files = tuple(name for name in V1_FILES if "memsw" not in name)
    group = v1_site(tmp_path, files).create("job", LIMITS)

    assert Path(group.memory, "memory.swappiness").read_text() == "0"


def test_v1_name_that_is_taken_is_refused_and_the_other_jobs_groups_stay(tmp_path: Path) -> None:
    taken = tmp_path / "cpu" / "computepool-job"

    def mkdir(path: str) -> None:
        if path == str(taken):
            raise FileExistsError(errno.EEXIST, "File exists", path)
        make_group(Path(path), V1_FILES)

    taken.mkdir(parents=True)
    site = v1_site(tmp_path)._replace(mkdir=mkdir)
    with pytest.raises(SandboxRefused, match="no control group"):
        site.create("job", LIMITS)
    assert taken.exists()
    assert not (tmp_path / "memory" / "computepool-job").exists()


def test_v1_usage_is_read_from_the_kernels_tables(tmp_path: Path) -> None:
    group = v1_site(tmp_path).create("job", LIMITS)
    Path(group.cpuacct, "cpuacct.usage").write_text("1500000000\n")
    Path(group.memory, "memory.max_usage_in_bytes").write_text("4096\n")
    Path(group.memory, "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")

    assert group.usage() == (1.5, 4096, 3)


def test_leftover_that_does_not_bear_our_name_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not one of our groups"):
        cgroups.remove_leftover(str(tmp_path / "system.slice"))
    cgroups.remove_leftover(str(tmp_path / "computepool-gone"))


def test_small_share_of_cpu_is_raised_to_what_the_kernel_takes() -> None:
    assert cgroup_files.plan_cpu_quota(LIMITS._replace(cpu_cores=0.001)) == 1000
    assert cgroup_files.plan_cpu_quota(LIMITS._replace(cpu_cores=2.5)) == 250_000
