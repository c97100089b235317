"""The agent's life on a machine: services, the owner's words, the debug log, a hub behind a private authority."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import json
import os
import plistlib
import ssl
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from uuid import uuid4
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from computepool.cli.main import cli
from computepool.core.errors import HubUnavailable
from computepool.node import journal
from computepool.node.config import load_config
from computepool.node.debug_bundle import AttemptFacts, diagnose, redact
from computepool.node.hub_client import HubClient
from computepool.node.installing import find_place, install, uninstall
from computepool.node.local_status import LocalAgent, LocalStatus, describe
from computepool.node.service import Service, render_launchd, render_systemd, render_windows
from computepool.node.state_dir import StateDir
from computepool.node.wishes import Wish, find_wish
from computepool.settings import InvalidSettings

SERVICE = Service(
    ["/opt/my python/bin/python", "-m", "computepool", "node", "--name", 'the "attic" & 100%'],
    {"COMPUTEPOOL_NODE_REGION": "DE"},
)


def test_the_unit_of_systemd_quotes_what_needs_it_and_delegates_control_groups():
    text = render_systemd(SERVICE)
    assert 'ExecStart="/opt/my python/bin/python" -m computepool node --name "the \\"attic\\" & 100%%"' in text
    assert "Environment=COMPUTEPOOL_NODE_REGION=DE\n" in text
    assert "Delegate=yes" in text
    assert "KillMode=process" in text


def test_systemd_itself_finds_no_fault_with_the_unit(tmp_path):
    unit = tmp_path / "computepool-node.service"
    unit.write_text(render_systemd(Service(["/bin/true", "a b", "100%"], {"X": "y z"})))
    if not Path("/usr/bin/systemd-analyze").exists():
        pytest.skip("systemd is not installed")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert str(unit.name) not in done.stderr, done.stderr


def test_the_plist_of_launchd_says_the_same():
    read = plistlib.loads(render_launchd(SERVICE).encode())
    assert read["ProgramArguments"] == list(SERVICE.command)
    assert read["EnvironmentVariables"] == dict(SERVICE.env)
    assert read["RunAtLoad"] is True


def test_the_task_of_windows_is_sound_xml_and_names_the_command():
    text = render_windows(SERVICE).replace('encoding="UTF-16"', 'encoding="utf-8"')
    arguments = next(
        each.text or "" for each in ElementTree.fromstring(text.encode()).iter() if each.tag.endswith("Arguments")
    )
    assert '"/opt/my python/bin/python" "-m" "computepool"' in arguments
    assert "COMPUTEPOOL_NODE_REGION=DE" in arguments


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_a_service_is_put_in_place_made_known_and_taken_away(tmp_path, platform):
    place = find_place({"HOME": str(tmp_path)}, platform=platform)
    ran: list[list[str]] = []
    done = install(place, SERVICE, run=lambda command: ran.append(command) or "")
    assert done.troubles == []
    assert place.path.exists()
    assert ran == place.start
    ran.clear()
    assert uninstall(place, run=lambda command: ran.append(command) or "") is not None
    assert ran == place.stop
    assert uninstall(place) is None


def test_where_there_is_no_service_manager_the_file_is_written_and_the_rest_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COMPUTEPOOL_NODE_STATE_DIR", str(tmp_path / "agent"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COMPUTEPOOL_NODE_OWNER_KEY", "very-secret-key")
    done = CliRunner().invoke(cli, ["node", "install", "--hub-url", "http://hub.test"], standalone_mode=False)
    assert done.return_value == 1
    assert "it is not installed" in done.output
    unit = (tmp_path / "config" / "systemd" / "user" / "computepool-node.service").read_text()
    assert "very-secret-key" not in unit
    assert (tmp_path / "agent" / "comfort.toml").exists()


@pytest.fixture
def folder(tmp_path) -> Path:
    state = StateDir(tmp_path / "agent")
    status = LocalStatus(
        pid=os.getpid(),
        node_id=uuid4(),
        name="attic",
        hub_url="http://hub.test",
        version="1",
        owner_words="You are here.",
    )
    state.status_path.write_bytes(msgspec.json.encode(status))
    return state.root


def invoke(folder: Path, *words: str):
    return CliRunner().invoke(cli, ["node", *words, "--state-dir", str(folder)], standalone_mode=False)


def test_owners_pause_and_resume_the_agent_on_their_machine(folder):
    wish = folder / "wish.json"
    assert invoke(folder, "pause").exception is None
    assert find_wish(wish) == Wish(pause=True)
    assert invoke(folder, "pause", "--now").exception is None
    assert find_wish(wish) == Wish(pause=True, now=True)
    assert invoke(folder, "resume").exception is None
    assert not wish.exists()


def test_draining_needs_an_agent_that_lives(folder):
    assert "nothing to drain" in str(invoke(folder, "drain").exception)
    state = StateDir(folder)
    state.lock()
    try:
        assert invoke(folder, "drain").exception is None
    finally:
        state.unlock()
    assert find_wish(folder / "wish.json") == Wish(drain=True)


def test_status_tells_a_living_agent_from_one_that_is_gone(folder):
    gone = invoke(folder, "status")
    assert gone.return_value == 1
    assert "no agent is running" in gone.output
    state = StateDir(folder)
    state.lock()
    try:
        here = invoke(folder, "status")
    finally:
        state.unlock()
    assert here.return_value == 0
    assert "attic: yours at the moment, takes no work. You are here." in here.output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "attic: lent."),
        ({"paused_here": True}, "computepool node resume"),
        ({"paused_at_hub": True}, "computepool nodes attic resume"),
        ({"draining": True}, "drains"),
        ({"doubt": "The disk is full."}, "takes no work. The disk is full."),
    ],
)
def test_each_state_of_an_agent_has_its_words(tmp_path, changes, words):
    status = LocalStatus(pid=1, node_id=uuid4(), name="attic", hub_url="http://hub.test", version="1", **changes)
    assert words in "\n".join(describe(LocalAgent(tmp_path, status, True), now_seconds=10.0))


def test_the_debug_log_gets_everything_and_never_outgrows_its_two_files(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FILE_BYTES_MAX", 10_000)
    path = tmp_path / "debug.log"
    journal.keep_file(path)
    try:
        for number in range(1_000):
            journal.debug("something_small", number=number)
    finally:
        journal.drop_file()
    assert "number=999" in path.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["debug.log", "debug.log.1"]
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 20_000
    assert path.stat().st_mode & 0o077 == 0


def test_secrets_are_removed_wherever_they_stand():
    token = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
    text = (
        f"a {token} b Authorization: Bearer abcdef123 c owner_key=hunter22 d https://me:pass@hub.test/x e lease-xyz f"
    )
    clean = redact(text, ["lease-xyz", "", "a"])
    for secret in (token, "abcdef123", "hunter22", "me:pass", "lease-xyz"):
        assert secret not in clean
    assert "hub.test/x" in clean
    assert clean.startswith("a ")


FACTS = {"attempt_id": "7", "state": "running", "slot": "cpu:0", "run_seconds": 900.0, "wall_seconds": 3600.0}


def test_a_job_that_waits_looks_hung_and_one_that_computes_does_not():
    hung = AttemptFacts(**FACTS, silent_seconds=600.0, cpu_seconds=0.0, process_count=2, waits=("futex_wait_queue",))
    assert "LOOKS HUNG" in diagnose(hung)
    assert "wait for a lock (futex_wait_queue)" in diagnose(hung)
    assert "wait for something (do_new_thing)" in diagnose(replace(hung, waits=("do_new_thing",)))
    busy = AttemptFacts(**FACTS, silent_seconds=None, cpu_seconds=1.9, process_count=2)
    assert "it computes" in diagnose(busy)
    unseen = AttemptFacts(**FACTS, silent_seconds=1.0, cpu_seconds=None, process_count=0)
    assert "cannot be seen" in diagnose(unseen)


class Authority:
    """A private one, and a server with a certificate by it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ca.pem"
        self._server_path = folder / "server.pem"
        key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Attic Authority")])
        now = datetime.datetime.now(datetime.UTC)

        def build(subject: x509.Name, public_key: ec.EllipticCurvePublicKey, is_ca: bool) -> x509.CertificateBuilder:
            return (
                x509.CertificateBuilder()
                .subject_name(subject)
                .issuer_name(name)
                .public_key(public_key)
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(hours=1))
                .not_valid_after(now + datetime.timedelta(hours=1))
                .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            )

        own = build(name, key.public_key(), True).sign(key, hashes.SHA256())
        local = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
        server = build(server_name, server_key.public_key(), False).add_extension(local, critical=False)
        pem = serialization.Encoding.PEM
        self.path.write_bytes(own.public_bytes(pem))
        self._server_path.write_bytes(
            server.sign(key, hashes.SHA256()).public_bytes(pem)
            + server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )

    @contextlib.contextmanager
    def serve(self):
        class Hub(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = json.dumps({"code": "not_found", "message": "you got through"}).encode()
                self.send_response(404)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words: object) -> None:
                return

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._server_path)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join(10)


async def test_a_hub_behind_a_private_authority_is_believed_once_that_is_named_and_not_before(tmp_path):
    authority = Authority(tmp_path)
    with authority.serve() as url:
        named = HubClient(url, agent_version="1", ca_file=str(authority.path))
        with pytest.raises(Exception, match="you got through"):
            await named.get_hub()
        await named.close()
        unnamed = HubClient(url, agent_version="1")
        with pytest.raises(HubUnavailable, match="COMPUTEPOOL_NODE_HUB_CA_FILE"):
            await unnamed.get_hub()
        await unnamed.close()


def test_a_file_without_certificates_is_refused_at_the_start(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "absent.pem"):
        env = {"HUB_URL": "https://hub.test", "COMPUTEPOOL_NODE_HUB_CA_FILE": str(tmp_path / name)}
        with pytest.raises(InvalidSettings, match="HUB_CA_FILE"):
            load_config(env)
