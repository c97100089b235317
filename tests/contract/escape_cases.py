"""Every known way out, with how it is shown to work outside. The suite and the benchmark run the same list."""

from __future__ import annotations

import json
import platform
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from computepool.node.sandbox.port import InputFile
from tests.contract.sandbox_lab import (
    AS_ROOT,
    AS_USER,
    IN_MOUNT_NAMESPACE,
    IN_PID_NAMESPACE,
    MEGABYTE,
    PROBES,
    PYTHON,
    Lab,
    Scene,
    run_control,
)

IN_OWN_NAMES = ("unshare", "--uts", "--ipc", "--mount", "--net", "--")


class Case(NamedTuple):
    """One probe that says of itself how it went. Those without limits of their own share one sandbox."""

    name: str
    how: Sequence[str] = AS_ROOT  # of the control
    arguments: Callable[[Scene], tuple[str, ...]] = lambda scene: ()
    script: str = ""
    limits: tuple[tuple[str, int], ...] = ()
    cause: str | None = None  # when the job is ended for trying, this is the cause; else it says CONTAINED
    exit_code: int = 0
    # gVisor's own kernel answers, with things of its own; the machine's is not asked.
    emulated: bool = False

    @property
    def is_alone(self) -> bool:
        return bool(self.limits)


def halves(word: str) -> tuple[str, str]:
    """So that the probe's own command line is not what it finds."""
    return word[: len(word) // 2], word[len(word) // 2 :]


def more(
    name: str,
    how: Sequence[str] = AS_ROOT,
    arguments: Callable[[Scene], tuple[str, ...]] = lambda scene: (),
    *,
    emulated: bool = False,
    limits: tuple[tuple[str, int], ...] = (),
    cause: str | None = None,
) -> Case:
    return Case(name, how, lambda scene: (name, *arguments(scene)), "more", limits, cause, emulated=emulated)


def bystander(scene: Scene) -> tuple[str, ...]:
    return (str(scene.bystander.pid),)


FILES = [
    Case("read_shadow"),
    Case("read_ssh_key", arguments=lambda scene: (str(scene.secret_path),)),
    Case("read_through_init_root", IN_PID_NAMESPACE, lambda scene: (str(scene.secret_path),)),
    Case("write_outside", AS_USER, lambda scene: (str(scene.folder),)),
    Case("make_device"),
    Case("open_devices"),
    Case("file_handle"),
    more("find_canary", arguments=lambda scene: (scene.canary,)),
    more("list_homes"),
    more("list_var"),
    more("read_machine_id"),
    more("see_user_root"),
    more("read_host_name", arguments=lambda scene: (platform.node(),)),
    more("give_file_to_root"),
    more("set_file_capability"),
    more("set_trusted_attribute"),
    more("write_system_config"),
]
KERNEL = [
    Case("write_sysctl"),
    Case("kernel_log", emulated=True),
    Case("bpf"),
    Case("io_uring", AS_USER, emulated=True),
    Case("perf_events"),
    Case("userfault"),
    Case("real_time", emulated=True),
    more("open_core_pattern"),
    more("open_drop_caches"),
    more("open_release_agent"),
    more("open_loop_control"),
    more("open_tun", emulated=True),
    more("open_fuse", emulated=True),
    more("watch_all_files"),
    more("splice_memory", AS_USER),
    more("switch_accounting_off"),
    more("switch_randomness_off", AS_USER, emulated=True),
]
NETWORKS = [
    Case("host_loopback", AS_USER, lambda scene: (str(scene.tcp_port),)),
    Case("abstract_socket", AS_USER, lambda scene: (scene.abstract_name,)),
    Case("network_cards", AS_USER),
    Case("raw_socket"),
    Case("vsock", AS_USER),
    more("connect_lan", AS_USER, lambda scene: (scene.lan_address, str(scene.lan_port))),
    more("connect_socket_file", AS_USER, lambda scene: (scene.socket_path,)),
    more("open_netlink", AS_USER, emulated=True),
    more("open_packet_socket"),
]
NAMESPACES = [
    Case("mount", IN_MOUNT_NAMESPACE, lambda scene: ("/tmp",)),
    Case("chroot"),
    Case("nested_userns", AS_USER, emulated=True),
    Case("clone_userns", AS_USER, emulated=True),
    more("unshare_many", emulated=True),
    more("unshare_network"),
    more("join_namespace", emulated=True),
    more("clone_mounts"),
    more("open_file_system"),
    more("pivot_names", IN_OWN_NAMES),
]
PROCESSES = [
    Case("see_processes", AS_USER, lambda scene: halves(scene.word)),
    # In a PID namespace of its own: the control reads environments, and the machine's are not its business.
    Case("agent_token", IN_PID_NAMESPACE, lambda scene: halves(scene.token)),
    Case("ptrace_others", AS_USER, emulated=True),
    Case("keyring", AS_USER, emulated=True),
    Case("tty_inject", emulated=True),
    more("signal_bystander", arguments=bystander),
    more("read_bystander_memory", arguments=bystander),
    more("read_child_memory", AS_USER, emulated=True),
    more("write_child_memory", AS_USER, emulated=True),
    more("ask_to_be_traced", AS_USER, emulated=True),
    more("take_descriptor", AS_USER),
    more("compare_processes", AS_USER),
    more("join_keyring", AS_USER, emulated=True),
]
RIGHTS = [
    Case("become_root"),
    Case("setuid_program", AS_USER),
    more("set_group_root"),
    more("set_groups"),
    more("raise_niceness", emulated=True),
]
BOMBS = [
    Case("fork_bomb", arguments=lambda scene: ("200",), limits=(("pids_max", 32),)),
    Case(
        "memory_hog",
        arguments=lambda scene: ("512",),
        limits=(("memory_bytes", 64 * MEGABYTE),),
        cause="out_of_memory",
    ),
    more("thread_bomb", arguments=lambda scene: ("200",), limits=(("pids_max", 32),), emulated=True),
    more(
        "memory_file_bomb",
        arguments=lambda scene: ("512",),
        limits=(("memory_bytes", 64 * MEGABYTE),),
        cause="out_of_memory",
    ),
    more("file_count_bomb", arguments=lambda scene: ("20000",), limits=(("disk_bytes", 8 * MEGABYTE),)),
]
if platform.machine() == "x86_64":
    PROCESSES.append(Case("old_abi", AS_USER, exit_code=-signal.SIGSYS, emulated=True))
    RIGHTS.append(more("read_segments", AS_USER))
SHARED = [*FILES, *KERNEL, *NETWORKS, *NAMESPACES, *PROCESSES, *RIGHTS]
CASES = [*SHARED, *BOMBS]


def script_of(case: Case) -> str:
    return case.script or case.name


def run_case_outside(case: Case, scene: Scene, folder: Path) -> str:
    return run_control(script_of(case), *case.arguments(scene), how=case.how, cwd=folder)


def run_shared(lab: Lab, scene: Scene) -> dict[str, tuple[int, str]]:
    """All probes that do not disturb each other, in one sandbox: id -> its exit code and last words."""
    orders = [(case.name, f"{script_of(case)}.py", case.arguments(scene)) for case in SHARED]
    plan = lab.root / "plan.json"
    plan.write_text(json.dumps(orders))
    inputs = [InputFile(path.name, str(path)) for path in sorted(PROBES.glob("*.py"))]
    attempt = lab.start(
        *(PYTHON, "-B", "battery.py", "plan.json"),
        inputs=[*inputs, InputFile("plan.json", str(plan))],
        wall_seconds=120.0,
        disk_bytes=32 * MEGABYTE,
    )
    result = attempt.await_end(150.0)
    lines = [json.loads(line) for line in result.log.splitlines() if line.startswith("[")]
    assert lines, f"{result.status.message} {result.log}"
    assert lines[-1][0] == "done", f"{result.status.message} {result.log}"
    return {name: (code, last) for name, code, last in lines}


def is_contained(case: Case, code: int, last: str, *, is_gvisor: bool) -> bool:
    if case.exit_code and not (is_gvisor and case.emulated):
        return code == case.exit_code
    if is_gvisor and case.emulated:
        return last.startswith(("CONTAINED", "ESCAPED", "BROKE")) or code != 0
    return last.startswith("CONTAINED")
