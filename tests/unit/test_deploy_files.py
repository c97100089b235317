"""Files for containers and hosts say only what is so: settings that exist, ports that are listened on, files that are
there, the hub's own policy. Each check is shown a mistake, too."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from computepool.hub.http.app import all_routes
from computepool.hub.http.site import SAFE_HEADERS, say_policy
from scripts.pack_site import pack, render_nginx_map

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE_FILES = ("compose.yaml", "node.compose.yaml")
SETTINGS = set(json.loads((DEPLOY / "environment.schema.json").read_text())["properties"])
# Of other programs: PostgreSQL's image, and uvicorn.
FOREIGN = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "FORWARDED_ALLOW_IPS"}
_VARIABLE = re.compile(r"\$\{(\w+)")


def load(name: str) -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / name).read_text())
    assert isinstance(found, dict)
    return found


def read_dockerfile(name: str) -> list[tuple[str, str]]:
    """Instructions and what follows them, lines that go on joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / name).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def list_faults(compose: dict[str, Any]) -> list[str]:
    """What is wrong with a compose file, by what the repository knows."""
    services: dict[str, Any] = compose["services"]
    faults = []
    for name, service in services.items():
        unknown = set(service.get("environment", {})) - SETTINGS - FOREIGN
        faults += [f"{name}: {each} is no setting" for each in sorted(unknown)]
        faults += [f"{name}: waits for {each}" for each in set(service.get("depends_on", {})) - set(services)]
        mounted = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        faults += [f"{name}: volume {each}" for each in mounted - set(compose.get("volumes", {}))]
        if "build" not in service:
            continue
        dockerfile = ROOT / service["build"]["dockerfile"]
        if not dockerfile.is_file():
            faults.append(f"{name}: no {dockerfile.name}")
            continue
        exposed = {port for kind, port in read_dockerfile(dockerfile.name) if kind == "EXPOSE"}
        # gRPC is switched on by a setting.
        published = {str(port).rpartition(":")[2] for port in service.get("ports", ())} - {"8001"}
        faults += [f"{name}: nobody listens on {port}" for port in published - exposed]
    return faults


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_a_compose_file_speaks_of_what_is_there(name: str) -> None:
    assert list_faults(load(name)) == []


def test_control_mistakes_in_a_compose_file_are_found() -> None:
    compose = load("compose.yaml")
    compose["services"]["backend"]["environment"]["COMPUTEPOOL_HUB_WORKRS"] = "2"
    compose["services"]["backend"]["ports"] = ["8000:8080"]
    compose["services"]["frontend"]["depends_on"] = {"hub": {}}
    compose["services"]["frontend"]["build"]["dockerfile"] = "deploy/web.Dockerfile"
    del compose["volumes"]["node"]
    assert len(list_faults(compose)) == 5


def test_the_services_that_the_readme_names_are_there() -> None:
    assert set(load("compose.yaml")["services"]) == {"postgres", "backend", "frontend", "node"}
    # A plain `up` starts all but the node, which needs an owner's key.
    plain = {name for name, service in load("compose.yaml")["services"].items() if "profiles" not in service}
    assert plain == {"postgres", "backend", "frontend"}
    assert load("compose.yaml")["services"]["frontend"]["environment"] == {"HUB_URL": "http://backend:8000"}


def test_a_node_of_its_own_is_the_node_of_the_other_file_and_must_be_told_its_hub() -> None:
    ours, theirs = load("node.compose.yaml")["services"]["node"], load("compose.yaml")["services"]["node"]
    for part in ("build", "image", "volumes", "privileged", "init", "stop_grace_period"):
        assert ours[part] == theirs[part], part
    assert set(ours["environment"]) == set(theirs["environment"])
    assert ours["environment"]["HUB_URL"].startswith("${HUB_URL:?")


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_every_value_that_a_person_may_set_is_a_setting_or_explained(name: str) -> None:
    asked = set(_VARIABLE.findall((DEPLOY / name).read_text()))
    explained = (DEPLOY / "README.md").read_text()
    assert [each for each in sorted(asked - SETTINGS) if each not in explained] == []


@pytest.mark.parametrize("name", ["hub.Dockerfile", "node.Dockerfile", "frontend.Dockerfile"])
def test_an_image_copies_what_is_there_and_sets_what_exists(name: str) -> None:
    instructions = read_dockerfile(name)
    copied = [rest.split()[:-1] for kind, rest in instructions if kind == "COPY" and not rest.startswith("--from")]
    assert copied
    assert [path for paths in copied for path in paths if not (ROOT / path).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert [path for paths in copied for path in paths if path in ignored] == []
    names = {word.partition("=")[0] for kind, rest in instructions if kind == "ENV" for word in rest.split()}
    assert names - SETTINGS - {"PATH", "PYTHONUNBUFFERED"} == set()
    # Railway refuses images that declare volumes; those of a hub are named by whoever runs it.
    assert name == "node.Dockerfile" or not any(kind == "VOLUME" for kind, _ in instructions)


def test_the_dashboard_is_not_kept_out_of_the_hubs_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert not any("src/computepool/hub/site".startswith(line) for line in ignored if line and line[0] != "#")


def test_railway_builds_the_hub_and_asks_whether_it_is_ready() -> None:
    found = json.loads((ROOT / "railway.json").read_text())
    assert (ROOT / found["build"]["dockerfilePath"]).is_file()
    paths = {route.path for route in all_routes() if route.method == "GET"}
    assert found["deploy"]["healthcheckPath"] in paths


def test_everything_that_the_site_asks_for_is_passed_on_to_the_hub() -> None:
    """The site asks its own origin, under one prefix alone."""
    asked = set(re.findall(r'["`](/v1/|/[a-z]+)', (ROOT / "web/src/lib/api/gateway.ts").read_text()))
    assert asked == {"/v1/"}
    vercel = json.loads((ROOT / "web" / "vercel.json").read_text())
    assert [rule["source"] for rule in vercel["rewrites"]] == ["/v1/:path*"]
    # With it, /v1/jobs would be sent on to /v1/jobs/, which the hub does not know.
    assert "trailingSlash" not in vercel
    # As a plain folder: told that this is Next.js, Vercel looks for a server's manifest in it and fails.
    assert (vercel["framework"], vercel["outputDirectory"]) == (None, "out")
    nginx = (DEPLOY / "frontend.nginx.conf").read_text()
    assert re.search(r"location /v1/ \{\s+proxy_pass http://backend:8000;", nginx)


def test_nginx_sends_the_hubs_own_policy_and_headers() -> None:
    nginx = (DEPLOY / "frontend.nginx.conf").read_text()
    sent = dict(re.findall(r'add_header ([\w-]+) (?:"([^"]*)"|\S+) always;', nginx))
    assert sent["Content-Security-Policy"] == say_policy(("HASHES",)).replace("'HASHES'", "$script_hashes")
    assert set(SAFE_HEADERS) <= set(sent)
    for name, value in SAFE_HEADERS.items():
        assert re.search(rf'add_header {name} "?{re.escape(value)}"? always;', nginx), name


def test_the_map_for_nginx_names_the_scripts_of_every_page(tmp_path: Path) -> None:
    (tmp_path / "out" / "jobs").mkdir(parents=True)
    (tmp_path / "out" / "index.html").write_text("<script>1</script><script>2</script>")
    (tmp_path / "out" / "jobs" / "index.html").write_text("<p>none")
    pack(tmp_path / "out", tmp_path / "site")
    [page] = re.findall(r'^ +"(/.*)" "(.*)";$', render_nginx_map(tmp_path / "site"), re.MULTILINE)
    assert page[0] == "/index.html"
    assert len(re.findall(r"'sha256-[\w+/=]+'", page[1])) == 2


def read_by_compose(name: str, **env: str) -> subprocess.CompletedProcess[str]:
    """By the implementation that pip brings; Docker's own is in none of Debian's packages."""
    command = [sys.executable, "-m", "podman_compose", "-f", str(DEPLOY / name), "--profile", "node", "config"]
    env = {"PATH": "/usr/bin:/bin:/usr/local/bin", **env}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_a_compose_program_understands_the_file(name: str) -> None:
    done = read_by_compose(name, POSTGRES_PASSWORD="x", HUB_URL="http://hub")
    assert done.returncode == 0, done.stderr


def test_a_compose_program_says_which_password_is_missing() -> None:
    done = read_by_compose("compose.yaml", HUB_URL="http://hub")
    assert done.returncode != 0
    assert "set POSTGRES_PASSWORD in deploy/.env" in done.stderr
