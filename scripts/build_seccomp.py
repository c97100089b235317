#!/usr/bin/env python3
"""Build the system-call filters that the sandboxes ship, from one list: for bubblewrap one program per architecture,
for container engines one profile (container.json) in the words that they share.

    python scripts/build_seccomp.py           write the files
    python scripts/build_seccomp.py --check   fail when a shipped file differs from the list

pyseccomp (a development dependency) knows the number of each call on each architecture. The few instructions
are put together here and not by libseccomp, because two rules need more than its rule language has: every
call newer than the list answers ENOSYS, and arguments that the kernel reads as 32 bits are compared as 32
bits (else garbage in the upper half walks past the rule).
"""

from __future__ import annotations

import contextlib
import errno
import json
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILTERS = Path(__file__).resolve().parent.parent / "src/computepool/node/sandbox/filters"

# Calls that change or look into the machine, other processes or the kernel itself. A job needs none of them.
REFUSED = (
    # The file tree: mounts and roots.
    *("mount", "umount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    # Namespaces, which open kernel code that only root used to reach.
    *("unshare", "setns"),
    # Other processes' memory and descriptors.
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
    # Keyrings are not namespaced by user: two jobs could meet there.
    *("keyctl", "add_key", "request_key"),
    # Large kernel surfaces with a history of holes.
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("fanotify_init", "fanotify_mark", "vmsplice", "modify_ldt", "migrate_pages", "move_pages"),
    # Handles reach files by number, past every mount.
    *("name_to_handle_at", "open_by_handle_at"),
    # The machine: kernel, modules, clock, names, swap, accounting, ports.
    *("kexec_load", "kexec_file_load", "reboot", "init_module", "finit_module", "delete_module"),
    *("create_module", "get_kernel_syms", "query_module", "syslog", "settimeofday", "clock_settime"),
    *("clock_adjtime", "adjtimex", "sethostname", "setdomainname", "swapon", "swapoff", "acct"),
    *("quotactl", "quotactl_fd", "iopl", "ioperm", "vhangup", "lookup_dcookie", "nfsservctl", "uselib"),
    *("_sysctl", "sysfs", "ustat", "pciconfig_read", "pciconfig_write", "pciconfig_iobase"),
)
# clone3 hides its flags behind a pointer, which a filter cannot read; libc falls back to clone on ENOSYS.
ABSENT = ("clone3",)
# The last call this list has an opinion on (futex_requeue, Linux 6.7). Numbers from 424 on are the same
# everywhere. What comes later is answered "no such call" until somebody has looked at it.
LAST_KNOWN_NUMBER = 456

CLONE_NEW_ANY = 0x7E020000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10  # AF_VSOCK, among others, reaches the host past network namespaces
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)  # Linux, 32-bit uname, query

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
X32_BIT = 0x40000000
# name -> AUDIT_ARCH number, as the kernel gives it to a filter (and as libseccomp names architectures)
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

LOAD, EQUAL, GREATER, GREATER_EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
OFFSET_NUMBER, OFFSET_ARCH, OFFSET_ARGUMENTS = 0, 4, 16
Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def build(architecture: str) -> bytes:
    """The filter of one architecture, as the kernel takes it."""
    arch = ARCHITECTURES[architecture]
    program: list[Instruction] = [(LOAD, 0, 0, OFFSET_ARCH), (EQUAL, 1, 0, arch), answer(KILL_PROCESS)]
    program.append((LOAD, 0, 0, OFFSET_NUMBER))
    if architecture == "x86_64":
        # The x32 interface has its own numbers for the same calls and would walk past every rule below.
        program += [(GREATER_EQUAL, 0, 1, X32_BIT), answer(KILL_PROCESS)]
    program += [(GREATER, 0, 1, LAST_KNOWN_NUMBER), answer(refusal(errno.ENOSYS))]
    for name, block in argument_rules():
        number = number_of(arch, name)
        if number is not None:
            program += [(EQUAL, 0, len(block), number), *block]
    for names, error in ((REFUSED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for name in names:
            number = number_of(arch, name)
            if number is not None:
                program += [(EQUAL, 0, 1, number), answer(refusal(error))]
    program.append(answer(ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def argument_rules() -> list[tuple[str, list[Instruction]]]:
    families = only(0, (AF_UNIX, AF_INET, AF_INET6), errno.EAFNOSUPPORT)
    return [
        ("socket", families),
        ("socketpair", families),
        ("personality", only(0, PERSONALITIES, errno.EPERM)),
        ("clone", [argument(0), (ANY_BIT, 0, 1, CLONE_NEW_ANY), answer(refusal(errno.EPERM)), answer(ALLOW)]),
        ("ioctl", all_but(1, (TIOCSTI, TIOCLINUX), errno.EPERM)),
    ]


def only(index: int, values: Sequence[int], error: int) -> list[Instruction]:
    checks = [step for value in values for step in ((EQUAL, 0, 1, value), answer(ALLOW))]
    return [argument(index), *checks, answer(refusal(error))]


def all_but(index: int, values: Sequence[int], error: int) -> list[Instruction]:
    checks = [step for value in values for step in ((EQUAL, 0, 1, value), answer(refusal(error)))]
    return [argument(index), *checks, answer(ALLOW)]


def argument(index: int) -> Instruction:
    """The lower half of an argument: all that the kernel reads of an int."""
    return (LOAD, 0, 0, OFFSET_ARGUMENTS + 8 * index)


def answer(action: int) -> Instruction:
    return (RETURN, 0, 0, action)


def refusal(error: int) -> int:
    return 0x00050000 | error


def number_of(arch: int, name: str) -> int | None:
    """The call's number, or None where this architecture does not have it."""
    import pyseccomp

    number = int(pyseccomp.resolve_syscall(arch, name))
    if number == -1:
        raise SystemExit(f"libseccomp does not know the call {name!r}: misspelt, or libseccomp is too old")
    return number if number >= 0 else None


def decide(program: bytes, *, arch: int, number: int, arguments: Sequence[int] = ()) -> int:
    """What the kernel would answer: the same small machine, for looking at filters of any architecture."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    seen = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(value & (2**64 - 1) for value in padded))
    instructions = list(struct.iter_unpack("<HBBI", program))
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, constant = instructions[at]
        at += 1
        if code == RETURN:
            return int(constant)
        if code == LOAD:
            (accumulator,) = struct.unpack_from("<I", seen, constant)
            continue
        holds = {
            EQUAL: accumulator == constant,
            GREATER: accumulator > constant,
            GREATER_EQUAL: accumulator >= constant,
            ANY_BIT: bool(accumulator & constant),
        }[code]
        at += if_true if holds else if_false


def build_profile() -> dict[str, Any]:
    """The same decisions as a profile for Podman and Docker, which hand it to libseccomp.

    Its language knows no "newer than"; so what is known and harmless is named, and the rest does not exist.
    """
    conditional = {name for name, _ in argument_rules()}
    refused = {name for name in REFUSED if name not in conditional}
    plain = sorted(list_known_names() - refused - conditional - set(ABSENT))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        # No sub-architectures: a job that calls by another's numbers is ended.
        "archMap": [{"architecture": f"SCMP_ARCH_{name.upper()}", "subArchitectures": []} for name in ARCHITECTURES],
        "syscalls": [
            {"names": plain, "action": "SCMP_ACT_ALLOW"},
            {"names": sorted(refused), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM},
            # Said twice: older Dockers know no default but EPERM, on which libc does not fall back.
            {"names": list(ABSENT), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
            *profile_rules("socket", 0, (AF_UNIX, AF_INET, AF_INET6)),
            *profile_rules("socketpair", 0, (AF_UNIX, AF_INET, AF_INET6)),
            *profile_rules("personality", 0, PERSONALITIES),
            masked_rule("clone", 0, CLONE_NEW_ANY, 0),
            *terminal_rules(),
        ],
    }


def list_known_names() -> set[str]:
    """Every call up to the last known number, on either architecture."""
    import pyseccomp

    names = set()
    for arch in ARCHITECTURES.values():
        for number in range(LAST_KNOWN_NUMBER + 1):
            # Some numbers were never given out.
            with contextlib.suppress(ValueError):
                names.add(pyseccomp.resolve_syscall(arch, number).decode())
    return names


def profile_rules(name: str, index: int, values: Sequence[int]) -> list[dict[str, Any]]:
    return [masked_rule(name, index, 0xFFFFFFFF, value) for value in values]


def masked_rule(name: str, index: int, mask: int, value: int) -> dict[str, Any]:
    """Allowed where these bits of the argument have this value: the upper half hides nothing."""
    condition = {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [condition]}


def terminal_rules() -> list[dict[str, Any]]:
    """Every ioctl but two, said without "not equal", which would look at the upper half too.

    The two differ in their last four bits alone: whatever differs from both in any other bit is allowed, and so
    are the fourteen that share the rest with them.
    """
    rest = TIOCSTI & ~0xF
    others = [masked_rule("ioctl", 1, 1 << bit, ~rest & 1 << bit) for bit in range(4, 32)]
    near = [rest | low for low in range(16) if rest | low not in (TIOCSTI, TIOCLINUX)]
    return [*others, *profile_rules("ioctl", 1, near)]


def main(arguments: Sequence[str]) -> int:
    FILTERS.mkdir(exist_ok=True)
    built = {f"{architecture}.bpf": build(architecture) for architecture in ARCHITECTURES}
    built["container.json"] = (json.dumps(build_profile(), indent=1) + "\n").encode()
    drifted = []
    for name, content in built.items():
        path = FILTERS / name
        if "--check" not in arguments:
            path.write_bytes(content)
            print(f"{path.name}: {len(content)} bytes")
        elif not path.exists() or path.read_bytes() != content:
            drifted.append(path.name)
    if drifted:
        print(f"{', '.join(drifted)} differ from the list in {Path(__file__).name}; run it without --check")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
