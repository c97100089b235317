"""What a job may be given besides its command: packages, an image, a way out, a GPU. On the backends that can."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from computepool.core.jobs.wants import is_host_allowed
from computepool.node.runner import handle
from computepool.node.sandbox import gpu_devices
from computepool.node.sandbox.images import ImageUnusable, ensure_image
from tests.contract.sandbox_lab import PYTHON, Lab, list_processes_with

ASK = """
import os, socket, sys, urllib.parse
gate = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
def ask(target):
    with socket.create_connection((gate.hostname, gate.port), timeout=5) as line:
        line.sendall(f"CONNECT {target} HTTP/1.1\\r\\n\\r\\n".encode())
        answer = line.recv(200).split(b"\\r\\n")[0].decode()
        if " 200 " in answer:
            line.sendall(b"hello")
            answer += " " + line.recv(100).decode()
        return answer
for target in sys.argv[1:]:
    print(target, ask(target), flush=True)
with socket.socket() as plain:
    plain.settimeout(1)
    try:
        plain.connect(("127.0.0.1", int(sys.argv[1].rpartition(":")[2])))
        print("REACHED WITHOUT THE GATE")
    except OSError as error:
        print("no way round:", error)
"""


@pytest.fixture
def far_host() -> Iterator[int]:
    """A server that answers in capitals, on this machine's loopback; its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            with line:
                line.sendall(line.recv(100).upper())

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    yield server.getsockname()[1]
    # Closing alone would leave the thread, and with it the port, waiting for ever.
    server.shutdown(socket.SHUT_RDWR)
    serving.join(10)
    server.close()


@pytest.mark.engines
def test_job_reaches_the_hosts_on_its_list_and_no_other(lab: Lab, far_host: int) -> None:
    allowed, other = f"127.0.0.1:{far_host}", "127.0.0.1:1"
    if not lab.backend.has_egress:
        status = lab.run(PYTHON, "-c", ASK, allowed, egress=(allowed,)).status
        assert (status.cause, status.started_at) == ("sandbox_refused", None)
        return

    result = lab.run(PYTHON, "-c", ASK, allowed, other, f"localhost:{far_host}", egress=(allowed, "localhost:*"))

    assert result.status.cause is None, result.log
    lines = result.log.splitlines()
    assert lines[0].endswith("200 Connected HELLO")
    assert "403 Not on the list" in lines[1]
    # A name that leads to a private address is refused, whatever the list says of the name.
    assert "403" in lines[2]
    assert "no way round" in result.log


def test_gate_goes_with_its_job_even_when_the_runner_is_killed(lab: Lab, far_host: int) -> None:
    target = f"127.0.0.1:{far_host}"
    attempt = lab.start("sh", "-c", "echo READY; sleep 300", egress=(target,))
    attempt.await_words("READY")
    assert Path(f"/run/computepool/{attempt.name}-net").exists()
    runner = attempt.status().runner_pid
    assert runner is not None
    os.kill(runner, 9)
    deadline = time.monotonic() + 60
    while list_processes_with(str(attempt.state_dir)) and time.monotonic() < deadline:
        time.sleep(0.02)

    assert list_processes_with(str(attempt.state_dir)) == []
    handle.cleanup(attempt.state_dir)
    assert not Path(f"/run/computepool/{attempt.name}-net").exists()


@pytest.mark.parametrize(
    ("target", "patterns", "expected"),
    [
        ("pypi.org:443", ("pypi.org:443",), True),
        ("PyPI.org:443", ("pypi.org:443",), True),
        ("files.pypi.org:443", ("*.pypi.org:443",), True),
        ("pypi.org:80", ("pypi.org:443",), False),
        ("evilpypi.org:443", ("*.pypi.org:443",), False),
        ("pypi.org.evil:443", ("pypi.org:443",), False),
        ("anything:22", ("*:443",), False),
        ("pypi.org:443", (), False),
        ("pypi.org:443", ("pypi.org:*",), False),
    ],
)
def test_list_of_hosts_is_read_narrowly(target: str, patterns: tuple[str, ...], expected: bool) -> None:
    assert is_host_allowed(target, patterns) is expected


@pytest.mark.engines
def test_packages_are_seen_read_only_and_nothing_of_them_is_left(lab: Lab, tmp_path: Path) -> None:
    private = tmp_path / "private"
    environment = private / "packages"
    environment.mkdir(parents=True)
    private.chmod(0o700)
    (environment / "tiny_module.py").write_text("WORDS = 'from a wheel'\n")
    environment.chmod(0o755)
    script = (
        "import tiny_module; print(tiny_module.WORDS)\n"
        "try:\n    open('/environment/planted', 'w')\nexcept OSError as error:\n    print('refused', error.errno)\n"
    )
    result = lab.run(PYTHON, "-B", "-c", script, environment=str(environment))

    assert result.log.splitlines()[0] == "from a wheel", result.status.message + result.log
    assert "refused" in result.log
    assert sorted(path.name for path in environment.iterdir()) == ["tiny_module.py"]
    assert not Path(f"/run/computepool/{lab.attempts[0].name}-environment").exists()


def test_gpu_slot_shows_its_own_card_and_no_other(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()

    shown = gpu_devices.list_devices(1, str(tmp_path))

    assert [Path(path).name for path in shown] == ["nvidia1", "nvidiactl", "nvidia-uvm"]
    assert gpu_devices.list_devices(2, str(tmp_path)) == ()
    (tmp_path / "dri").mkdir()
    (tmp_path / "kfd").touch()
    (tmp_path / "dri" / "renderD130").touch()
    assert [Path(path).name for path in gpu_devices.list_devices(2, str(tmp_path))] == ["kfd", "renderD130"]


@pytest.fixture
def cards() -> Iterator[list[str]]:
    """Two devices that stand in for cards: what is read from one is nothing, from the other zeros."""
    paths = [f"/dev/computepool-card-{os.getpid()}-{number}" for number in range(2)]
    for path, minor in zip(paths, (3, 5), strict=True):
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, minor))
        os.chmod(path, 0o666)
    yield paths
    for path in paths:
        os.unlink(path)


@pytest.mark.engines
def test_device_of_its_slot_can_be_used_and_its_neighbour_not(lab: Lab, cards: list[str]) -> None:
    if lab.is_gvisor:
        return  # it knows no devices but its own; GPU jobs are not given to it
    script = f"head -c 4 {cards[1]} | od -An -tx1; ls {cards[0]} || echo NO_NEIGHBOUR"
    result = lab.run("sh", "-c", script, devices=(cards[1],))

    assert "00 00 00 00" in result.log, result.status.message + result.log
    assert "NO_NEIGHBOUR" in result.log


# Images: by digest, from a registry of the test's own


class Registry(BaseHTTPRequestHandler):
    blobs: ClassVar[dict[str, tuple[str, bytes]]] = {}

    def do_GET(self) -> None:
        unknown = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}).encode()
        kind, content = self.blobs.get(self.path.rpartition("/")[2], ("application/json", unknown))
        if self.path == "/v2/":
            kind, content = "application/json", b"{}"
        self.send_response(404 if content == unknown else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image with one program in it, as a registry would serve it: name@digest."""
    busybox = Path("/usr/bin/catatonit")
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("job", "tmp", "dev", "proc", "sys", "etc", "run", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(busybox, "program")
    blobs: dict[str, tuple[str, bytes]] = {}

    def put(kind: str, content: bytes) -> dict[str, object]:
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        blobs[digest] = (kind, content)
        return {"mediaType": kind, "size": len(content), "digest": digest}

    docker = "application/vnd.docker"
    stored = put(f"{docker}.image.rootfs.diff.tar", layer.getvalue())
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": ["/never"]},
        "rootfs": {"type": "layers", "diff_ids": [stored["digest"]]},
        "history": [{"created_by": "test"}],
    }
    about = put(f"{docker}.container.image.v1+json", json.dumps(config).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{docker}.distribution.manifest.v2+json",
        "config": about,
        "layers": [stored],
    }
    top = put(f"{docker}.distribution.manifest.v2+json", json.dumps(manifest).encode())
    Registry.blobs = blobs
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"127.0.0.1:{server.server_port}/computepool/test@{top['digest']}"
    yield name
    server.shutdown()
    for program in ("podman", "docker"):
        subprocess.run([program, "rmi", "--force", name], capture_output=True, timeout=60, check=False)


@pytest.mark.engines
def test_image_is_fetched_by_its_digest_and_runs_with_its_own_files_alone(lab: Lab, image: str) -> None:
    if not lab.backend.runs_images:
        status = lab.run("/program", image=image).status
        assert (status.cause, status.started_at) == ("sandbox_refused", None)
        return
    ensure_image(lab.backend.name, image)

    result = lab.run("/program", "--version", image=image)
    other = lab.run(PYTHON, "-c", "pass", image=image)

    assert result.status.cause is None, result.status.message + result.log
    assert "catatonit" in result.log
    # The machine's own programs are not in it.
    assert other.status.cause == "exit_code"


@pytest.mark.engines
def test_image_that_is_not_there_or_has_no_digest_is_the_jobs_fault(lab: Lab, image: str) -> None:
    if not lab.backend.runs_images:
        return
    with pytest.raises(ImageUnusable):
        ensure_image(lab.backend.name, image.partition("@")[0] + "@sha256:" + "0" * 64)
    for crooked in ("docker.io/library/python:3", "--privileged", image + " --privileged", image.upper()):
        with pytest.raises(ImageUnusable, match="digest"):
            ensure_image(lab.backend.name, crooked)
        assert lab.run("true", image=crooked).status.cause == "sandbox_refused"
