"""Ways out that take a line or two each. argv: the name of one, then what it needs. Says ESCAPED or CONTAINED."""

import ctypes
import os
import platform
import socket
import sys
import threading
from pathlib import Path

from probe import libc, report, works

X86 = platform.machine() == "x86_64"
NUMBERS = {
    "pidfd_open": 434, "pidfd_getfd": 438, "open_tree": 428, "fsopen": 430,
    "fanotify_init": 300 if X86 else 262, "kcmp": 312 if X86 else 272, "keyctl": 250 if X86 else 219,
    "vmsplice": 278 if X86 else 75, "modify_ldt": 154, "process_vm_readv": 310 if X86 else 270,
    "process_vm_writev": 311 if X86 else 271, "ptrace": 101 if X86 else 117, "acct": 163 if X86 else 89,
    "mount_setattr": 442, "io_uring_register": 427, "quotactl": 179 if X86 else 60, "sysfs": 139,
}  # fmt: skip
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 26, 1 << 27, 1 << 29, 1 << 30


def call(name, *arguments):
    return int(
        libc.syscall(
            ctypes.c_long(NUMBERS[name]),
            *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments),
        )
    )


def opens(path, flags=os.O_RDONLY):
    """Opened and closed again: nothing is read or written."""
    return works(lambda: os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)))


def connects(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        return works(lambda: client.connect(address))


# Files of the machine and of its other users


def find_canary(name):
    """Two folders deep below every place where things of the machine lie."""
    for top in ("/tmp", "/var/tmp", "/run", "/home", "/root", "/opt", "/srv", "/mnt", "/media", "/job", "/"):
        for folder in (top, *(os.path.join(top, each) for each in _list(top))):
            if name in _list(folder):
                return True
    return False


def _list(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def list_homes():
    return any(works(lambda path=path: os.listdir(path)) for path in ("/root", "/home"))


def read_machine_id():
    return opens("/etc/machine-id")


def see_user_root():
    """The names of the machine's users; a job's own small list has one."""
    try:
        return "root:" in Path("/etc/passwd").read_text() and len(Path("/etc/passwd").read_text().splitlines()) > 5
    except OSError:
        return False


def list_var():
    return works(lambda: os.listdir("/var/lib/dpkg"))


def read_host_name(name):
    return socket.gethostname() == name


def give_file_to_root():
    Path("mine").write_text("x")
    return works(lambda: os.chown("mine", 0, 0))


def set_file_capability():
    Path("capable").write_text("x")
    value = bytes.fromhex("0100000200040000000000000000000000000000")
    return works(lambda: os.setxattr("capable", "security.capability", value))


def set_trusted_attribute():
    Path("trusted").write_text("x")
    return works(lambda: os.setxattr("trusted", "trusted.x", b"x"))


def write_system_config():
    return opens("/etc", os.O_TMPFILE | os.O_WRONLY)


# The kernel through /proc and /sys


def open_core_pattern():
    return opens("/proc/sys/kernel/core_pattern", os.O_WRONLY)


def open_release_agent():
    found = ["/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/cgroup.procs"]
    return any(opens(path, os.O_WRONLY) for path in found)


def open_drop_caches():
    return opens("/proc/sys/vm/drop_caches", os.O_WRONLY)


# Devices


def open_loop_control():
    return opens("/dev/loop-control", os.O_RDWR)


def open_tun():
    return opens("/dev/net/tun", os.O_RDWR)


def open_fuse():
    return opens("/dev/fuse", os.O_RDWR)


# Networks


def connect_lan(host, port):
    return connects(socket.AF_INET, (host, int(port)))


def connect_loopback6(port):
    return connects(socket.AF_INET6, ("::1", int(port)))


def connect_socket_file(path):
    return connects(socket.AF_UNIX, path)


def open_netlink():
    return works(lambda: socket.socket(16, socket.SOCK_RAW, 0).close())


def open_packet_socket():
    return works(lambda: socket.socket(17, socket.SOCK_RAW, 0).close())


# Namespaces and mounts


def unshare_many():
    return libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC) == 0


def unshare_network():
    return libc.unshare(CLONE_NEWNET) == 0


def join_namespace():
    fd = os.open("/proc/self/ns/uts", os.O_RDONLY)
    return libc.setns(fd, 0) == 0


def clone_mounts():
    return call("open_tree", -100, b"/", 1) >= 0


def open_file_system():
    return call("fsopen", b"tmpfs", 0) >= 0


def pivot_names():
    """A name for the machine: in a namespace of its own if this is the control."""
    return libc.sethostname(b"probe", 5) == 0


# Other processes


def signal_bystander(process_id):
    return works(lambda: os.kill(int(process_id), 0))


def read_bystander_memory(process_id):
    return opens(f"/proc/{process_id}/mem", os.O_RDWR)


def read_child_memory():
    buffer = ctypes.create_string_buffer(b"secret")
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 6)
    target = ctypes.create_string_buffer(6)
    into = (ctypes.c_size_t * 2)(ctypes.addressof(target), 6)
    return call("process_vm_readv", os.getpid(), into, 1, vector, 1, 0) == 6


def write_child_memory():
    buffer = ctypes.create_string_buffer(b"secret")
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 6)
    return call("process_vm_writev", os.getpid(), vector, 1, vector, 1, 0) == 6


def ask_to_be_traced():
    child = os.fork()
    if child == 0:
        os._exit(0 if call("ptrace", 0, 0, 0, 0) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def take_descriptor():
    pidfd = call("pidfd_open", os.getpid(), 0)
    return pidfd >= 0 and call("pidfd_getfd", pidfd, 0, 0) >= 0


def compare_processes():
    return call("kcmp", os.getpid(), os.getpid(), 1, 0, 0) == 0


# Rights


def set_group_root():
    return works(lambda: os.setgid(0))


def set_groups():
    return works(lambda: os.setgroups([0, 4, 6]))


def raise_niceness():
    return works(lambda: os.nice(-5))


def join_keyring():
    return call("keyctl", 1, 0) > 0


def switch_randomness_off():
    return libc.personality(ctypes.c_ulong(0x0040000)) >= 0


def switch_accounting_off():
    return call("acct", 0) == 0


def watch_all_files():
    return call("fanotify_init", 0, 0) >= 0


def read_segments():
    return call("modify_ldt", 0, ctypes.create_string_buffer(64), 64) >= 0


def splice_memory():
    _, write_fd = os.pipe()
    buffer = ctypes.create_string_buffer(b"secret")
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 6)
    return call("vmsplice", write_fd, vector, 1, 0) == 6


# Bombs, each stopped at a harmless size


def thread_bomb(wanted):
    stop, made = threading.Event(), []
    try:
        for _ in range(int(wanted)):
            thread = threading.Thread(target=stop.wait, daemon=True)
            thread.start()
            made.append(thread)
    except RuntimeError:
        pass
    stop.set()
    return len(made) == int(wanted)


def memory_file_bomb(megabytes):
    fd = os.memfd_create("bomb")
    for _ in range(int(megabytes)):
        os.write(fd, bytes(1 << 20))
    return True


def pipe_bomb(megabytes):
    held, written = [], 0
    try:
        while written < int(megabytes) << 20:
            pipe = os.pipe()
            held.append(pipe)
            os.set_blocking(pipe[1], False)
            try:
                while True:
                    written += os.write(pipe[1], bytes(1 << 16))
            except BlockingIOError:
                pass
    except OSError:
        pass
    return written >= int(megabytes) << 20


def file_count_bomb(count):
    try:
        os.makedirs("many", exist_ok=True)
        for number in range(int(count)):
            os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY))
    except OSError:
        return False
    return True


# Things left behind; whether they are still there is looked at from outside


def leave_segment(key):
    number = libc.shmget(int(key), 4096, 0o1666)
    print("LEFT", flush=True)
    return number >= 0


def leave_file(path):
    return works(lambda: Path(path).write_text("left"))


if __name__ == "__main__":
    report(bool(globals()[sys.argv[1]](*sys.argv[2:])), sys.argv[1])
