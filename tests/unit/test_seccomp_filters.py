"""The shipped system-call filters, decision by decision, for both architectures on any machine."""

from __future__ import annotations

import errno
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from computepool.node.sandbox.port import SandboxRefused
from computepool.node.sandbox.seccomp import FILTERS_DIR, find_filter

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "build_seccomp.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_seccomp", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build_seccomp = load_script()
EPERM, ENOSYS = build_seccomp.refusal(errno.EPERM), build_seccomp.refusal(errno.ENOSYS)
NO_FAMILY = build_seccomp.refusal(errno.EAFNOSUPPORT)
ALLOW, KILL = build_seccomp.ALLOW, build_seccomp.KILL_PROCESS
ARCHITECTURES = pytest.mark.parametrize("architecture", sorted(build_seccomp.ARCHITECTURES))


def decide(architecture: str, name: str | int, *arguments: int) -> int:
    arch = build_seccomp.ARCHITECTURES[architecture]
    number = name if isinstance(name, int) else build_seccomp.number_of(arch, name)
    program = Path(FILTERS_DIR, f"{architecture}.bpf").read_bytes()
    return int(build_seccomp.decide(program, arch=arch, number=number, arguments=arguments))


@ARCHITECTURES
def test_shipped_filter_is_what_the_list_says(architecture: str) -> None:
    assert Path(find_filter(architecture)).read_bytes() == build_seccomp.build(architecture)


def test_check_mode_notices_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_seccomp, "FILTERS", tmp_path)
    assert build_seccomp.main(["--check"]) == 1
    assert build_seccomp.main([]) == 0
    assert build_seccomp.main(["--check"]) == 0
    (tmp_path / "aarch64.bpf").write_bytes(b"\0" * 8)
    assert build_seccomp.main(["--check"]) == 1


@ARCHITECTURES
def test_every_call_of_the_list_is_refused(architecture: str) -> None:
    arch = build_seccomp.ARCHITECTURES[architecture]
    refused = [name for name in build_seccomp.REFUSED if build_seccomp.number_of(arch, name) is not None]

    assert len(refused) > 50
    assert {decide(architecture, name) for name in refused} == {EPERM}
    assert decide(architecture, "clone3") == ENOSYS


@ARCHITECTURES
@pytest.mark.parametrize("name", ["read", "openat", "mmap", "execve", "futex", "wait4", "memfd_create", "prctl"])
def test_everyday_calls_pass(architecture: str, name: str) -> None:
    assert decide(architecture, name) == ALLOW


@ARCHITECTURES
def test_calls_newer_than_the_list_do_not_exist(architecture: str) -> None:
    last = build_seccomp.LAST_KNOWN_NUMBER

    assert decide(architecture, last) == ALLOW
    assert decide(architecture, last + 1) == ENOSYS
    assert decide(architecture, 1000) == ENOSYS


@ARCHITECTURES
def test_other_architectures_are_killed(architecture: str) -> None:
    program = Path(FILTERS_DIR, f"{architecture}.bpf").read_bytes()
    i386, arm = 0x40000003, 0x40000028

    for arch in (i386, arm, 0):
        assert build_seccomp.decide(program, arch=arch, number=39) == KILL


def test_x32_numbers_are_killed() -> None:
    assert decide("x86_64", 0x40000000 | 39) == KILL
    assert decide("x86_64", 0xFFFFFFFF) == KILL


@ARCHITECTURES
def test_clone_may_make_threads_and_processes_but_no_namespaces(architecture: str) -> None:
    thread = 0x3D0F00
    assert decide(architecture, "clone", thread) == ALLOW
    assert decide(architecture, "clone", 17) == ALLOW
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(architecture, "clone", 17 | namespace) == EPERM
        # What the kernel does not look at must not hide what it does look at.
        assert decide(architecture, "clone", 1 << 63 | 17 | namespace) == EPERM


@ARCHITECTURES
def test_terminal_injection_is_refused_whatever_the_upper_half_says(architecture: str) -> None:
    for request in (build_seccomp.TIOCSTI, build_seccomp.TIOCLINUX):
        assert decide(architecture, "ioctl", 0, request) == EPERM
        assert decide(architecture, "ioctl", 0, 1 << 32 | request) == EPERM
    assert decide(architecture, "ioctl", 0, 0x5401) == ALLOW


@ARCHITECTURES
def test_only_unix_and_internet_sockets_open(architecture: str) -> None:
    families = {family: decide(architecture, "socket", family) for family in range(48)}

    assert {family for family, answer in families.items() if answer == ALLOW} == {1, 2, 10}
    assert set(families.values()) == {ALLOW, NO_FAMILY}
    assert decide(architecture, "socketpair", 1) == ALLOW
    assert decide(architecture, "socketpair", 40) == NO_FAMILY


def test_machine_without_a_filter_is_refused() -> None:
    with pytest.raises(SandboxRefused, match="riscv64"):
        find_filter("riscv64")


def decide_by_profile(name: str, *arguments: int) -> str:
    """What libseccomp makes of the profile: rules of one call are alternatives, and the first that fits decides."""
    profile = build_seccomp.build_profile()
    for rule in profile["syscalls"]:
        if name in rule["names"]:
            wanted = rule.get("args", [])
            if all(arguments[each["index"]] & each["value"] == each["valueTwo"] for each in wanted):
                return str(rule["action"])
    return str(profile["defaultAction"])


def test_profile_for_engines_decides_as_the_filter_does() -> None:
    for name in sorted(build_seccomp.list_known_names()):
        arch = build_seccomp.ARCHITECTURES["x86_64"]
        try:
            number = build_seccomp.number_of(arch, name)
        except SystemExit:
            continue
        if number is None:
            continue
        for arguments in (
            (0, 0),
            (40, 0x5412),
            (1, 0x541C),
            (10, 0x5413),
            (0x10000000, 0x5401),
            (2, 1 << 32 | 0x5412),
        ):
            allowed = decide("x86_64", name, *arguments) == ALLOW
            assert (decide_by_profile(name, *arguments) == "SCMP_ACT_ALLOW") is allowed, (name, arguments)


def test_profile_knows_no_other_architecture_and_refuses_by_default() -> None:
    profile = build_seccomp.build_profile()

    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert all(each["subArchitectures"] == [] for each in profile["archMap"])
    assert decide_by_profile("a_call_of_tomorrow") == "SCMP_ACT_ERRNO"
