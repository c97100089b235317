"""A machine with things worth stealing on it: secrets, doors, a bystander. The suite and the benchmark play on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from computepool import entropy
from tests.contract.sandbox_lab import PYTHON, Scene


@contextmanager
def make_scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="computepool-scene-"))
        stack.callback(shutil.rmtree, folder)
        folder.chmod(0o777)
        secret_path = folder / "home" / ".ssh" / "id_ed25519"
        secret_path.parent.mkdir(parents=True, mode=0o700)
        secret = entropy.new_secret()
        secret_path.write_text(secret)
        word, token, name, canary = (entropy.new_secret(12) for _ in range(4))
        (folder / canary).write_text("found")
        os.environ["COMPUTEPOOL_NODE_TOKEN"] = token
        stack.callback(os.environ.pop, "COMPUTEPOOL_NODE_TOKEN", None)
        bystander = subprocess.Popen([PYTHON, "-c", "import time; time.sleep(1800)", word], stdin=subprocess.DEVNULL)
        stack.callback(bystander.wait)
        stack.callback(bystander.kill)
        descriptor = os.open(secret_path, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        os.set_inheritable(descriptor, True)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(1.0)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind("\0" + name)
        abstract.listen()
        lan_address = find_lan_address()
        lan = stack.enter_context(socket.create_server((lan_address, 0)))
        door = stack.enter_context(socket.socket(socket.AF_UNIX))
        socket_path = str(folder / "door")
        door.bind(socket_path)
        door.listen()
        Path(socket_path).chmod(0o777)
        yield Scene(
            folder=folder,
            secret_path=secret_path,
            secret=secret,
            token=token,
            word=word,
            bystander=bystander,
            tcp_port=tcp.getsockname()[1],
            udp=udp,
            abstract_name=name,
            descriptor=descriptor,
            canary=canary,
            lan_address=lan_address,
            lan_port=lan.getsockname()[1],
            socket_path=socket_path,
        )


def find_lan_address() -> str:
    """The address by which other machines know this one; a machine without any lends its second loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: the kernel only chooses the card.
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])
