"""What the documents say of links, files, commands, functions and settings is so. Each check is shown a lie, too."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from computepool import settings
from computepool.cli.main import cli
from computepool.hub.config import PREFIX as HUB_PREFIX
from computepool.hub.config import HubSettings
from computepool.hub.http.errors import STATUS
from computepool.node.config import PREFIX as NODE_PREFIX
from computepool.node.config import NodeConfig

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "computepool"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])
TOUR = ROOT / "docs" / "tour.md"
# The operator writes it; it holds secrets and is never part of the repository.
WRITTEN_BY_THE_READER = {"deploy/.env"}
README_LINES_MAX = 120
DECISION_LINES_MAX = 60

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PATH = re.compile(r"(?:src|docs|tests|deploy|scripts|soaks|examples)/[^\s:]*")
_TOUR_PATH = re.compile(r"(?:core|wire|hub|node|sdk|cli)/[\w./]+\.(?:py|sql)")
_FUNCTION = re.compile(r"`([A-Za-z_][\w.]*)\(\)`")
_MAKE = re.compile(r"(?:^|\s)make ([a-z][\w./-]*)")
_COMMAND = re.compile(r"(?:^|[\s;&|(])computepool ([a-z][a-z-]*\b.*)")


def list_inline(text: str) -> list[str]:
    return _INLINE.findall(_FENCE.sub("", text))


def list_code(text: str) -> Iterator[str]:
    """Everything that a reader might type: inline code, and fenced lines without their comments."""
    yield from list_inline(text)
    for block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"(?:^|\s)#.*", "", line).rstrip()


def list_broken_links(path: Path, text: str) -> list[str]:
    prose = _INLINE.sub("", _FENCE.sub("", text))
    return [
        link
        for link in _LINK.findall(prose)
        if not link.startswith(("http:", "https:")) and _leads_nowhere(path, link)
    ]


def _leads_nowhere(path: Path, link: str) -> bool:
    name, _, fragment = link.partition("#")
    target = path.parent / name if name else path
    if not target.exists():
        return True
    return bool(fragment) and fragment not in {
        _to_anchor(heading) for heading in _HEADING.findall(target.read_text())
    }


def _to_anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def list_absent_files(path: Path, text: str) -> list[str]:
    """Paths from the root of the repository; those with a placeholder or a pattern in them name no file."""
    named = [found[0].rstrip(".,;") for code in list_inline(text) if (found := _PATH.match(code))]
    plain = [name for name in named if not re.search(r"[*<{]", name) and name not in WRITTEN_BY_THE_READER]
    return [name for name in plain if not (ROOT / name).exists()]


def list_absent_targets(path: Path, text: str) -> list[str]:
    known = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    return [name for code in list_code(text) for name in _MAKE.findall(code) if name not in known]


def list_absent_functions(path: Path, text: str) -> list[str]:
    return [name for name in _FUNCTION.findall(_FENCE.sub("", text)) if not _is_defined(name)]


def _is_defined(name: str) -> bool:
    """`Class.method` must stand in one file; a bare name may stand anywhere."""
    owner, _, last = name.rpartition(".")
    defined = re.compile(rf"^\s*(?:async def|def|class) {last}\b", re.MULTILINE)
    owned = re.compile(rf"^class {owner.rpartition('.')[2]}\b", re.MULTILINE)
    texts = (file.read_text() for file in SOURCE.rglob("*.py"))
    return any(defined.search(text) and (not owner or owned.search(text)) for text in texts)


def list_wrong_commands(path: Path, text: str) -> list[str]:
    typed = [found[1] for code in list_code(text) if (found := _COMMAND.search(code))]
    return [command for command in typed if not _is_understood(shlex.split(command))]


def _is_understood(words: list[str]) -> bool:
    """Whether the command exists, and each option before a bare `--`."""
    command: click.Command | None = cli
    options = {"-h", "--help"}
    # A group may have options of its own, and their values name no command.
    is_value = False
    for word in words[: words.index("--")] if "--" in words else words:
        if is_value:
            is_value = False
        elif isinstance(command, click.Group) and not word.startswith("-"):
            command = command.get_command(click.Context(command), word)
            if command is None:
                return False
            options |= {name for each in command.params for name in each.opts}
        elif word.startswith("-"):
            if word.partition("=")[0] not in options:
                return False
            if isinstance(command, click.Group) and "=" not in word:
                is_value = any(
                    word in each.opts and isinstance(each, click.Option) and not each.is_flag
                    for each in command.params
                )
    return True


CHECKS: tuple[tuple[Callable[[Path, str], list[str]], str], ...] = (
    (list_broken_links, "[here](docs/no-such-page.md)"),
    (list_broken_links, "[a part](ARCHITECTURE.md#no-such-part)"),
    (list_absent_files, "see `src/computepool/no_such_file.py`"),
    (list_absent_targets, "```\nmake no-such-target   # a comment\n```"),
    (list_absent_functions, "see `no_such_function()`"),
    (list_absent_functions, "see `Rounds.no_such_method()`"),
    (list_wrong_commands, "`computepool no-such-command`"),
    (list_wrong_commands, "```\ncomputepool run --no-such-option x.py\n```"),
    (list_wrong_commands, "`computepool fleet no-such-word`"),
)


@pytest.mark.parametrize("check", dict.fromkeys(check for check, _ in CHECKS), ids=lambda check: check.__name__)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_speaks_only_of_what_is_there(document: Path, check: Callable[[Path, str], list[str]]) -> None:
    assert check(document, document.read_text()) == []


@pytest.mark.parametrize(("check", "lie"), CHECKS)
def test_control_a_lie_is_noticed(check: Callable[[Path, str], list[str]], lie: str) -> None:
    assert len(check(ROOT / "README.md", lie)) == 1


def test_the_documents_are_found_at_all() -> None:
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {"README.md", "ARCHITECTURE.md", "docs/tour.md", "deploy/README.md"} <= names


def test_every_file_of_the_tour_is_there() -> None:
    named = [code for code in list_inline(TOUR.read_text()) if _TOUR_PATH.fullmatch(code)]
    assert len(named) > 20
    assert [name for name in named if not (SOURCE / name).is_file()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/decisions/*.md")), ids=lambda path: path.stem)
def test_a_decision_fits_on_a_page_and_names_its_cost(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= DECISION_LINES_MAX
    assert _HEADING.findall(text)[1:] == ["Context", "Choice", "Cost"]
    assert text.startswith(f"# {path.stem[:4]}. ")


def test_every_error_is_listed_with_its_status() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (yes|no) \|", text, re.MULTILINE)
    expected = [(cls.code, str(status), "yes" if cls.retryable else "no") for cls, status in STATUS.items()]
    assert sorted(rows) == sorted(expected)


def read_yaml(text: str) -> Any:
    """The part of YAML that compose.yaml keeps to: nested mappings, lists of texts, quoted texts and flow lists.

    What a real parser might read otherwise is refused, so that no such parser is needed as a dependency.
    """
    assert "\t" not in text, "YAML is indented by spaces"
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    value, rest = _read_block(lines, 0)
    assert rest == [], f"this line fits nowhere: {rest[0]!r}"
    return value


def _read_block(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    listed: list[Any] = []
    mapped: dict[str, Any] = {}
    while lines and len(lines[0]) - len(lines[0].lstrip()) == indent:
        line, lines = lines[0].strip(), lines[1:]
        if line.startswith("- "):
            listed.append(_read_scalar(line[2:]))
            continue
        found = re.fullmatch(r"([\w.-]+):(?: (.+))?", line)
        assert found, f"neither a key nor an item: {line!r}"
        assert found[1] not in mapped, f"{found[1]} is given twice"
        if found[2] is None:
            mapped[found[1]], lines = _read_block(lines, indent + 2)
        else:
            mapped[found[1]] = _read_scalar(found[2])
    assert not (listed and mapped), "a list and a mapping at once"
    return (listed or mapped or None), lines


def _read_scalar(text: str) -> Any:
    if text[0] in '"[':
        return json.loads(text)
    assert not re.search(r": | #|^[*&!|>%@'{,?-]", text), f"put quotes around {text!r}"
    return {"true": True, "false": False}.get(text, text)


COMPOSE_PATH = ROOT / "deploy" / "compose.yaml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return read_yaml(COMPOSE_PATH.read_text())


def find_dockerfile(service: dict[str, Any]) -> Path | None:
    build = service.get("build")
    return COMPOSE_PATH.parent / build["context"] / build["dockerfile"] if build else None


def test_compose_names_its_services_and_files_that_exist(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"postgres", "backend", "frontend", "node"}
    for name in ("backend", "frontend", "node"):
        dockerfile = find_dockerfile(services[name])
        assert dockerfile is not None
        assert dockerfile.is_file()
        assert (COMPOSE_PATH.parent / services[name]["build"]["context"]).resolve() == ROOT
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)


def test_every_service_says_whether_it_is_healthy(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        dockerfile = find_dockerfile(service)
        in_image = dockerfile is not None and "\nHEALTHCHECK " in dockerfile.read_text()
        assert in_image or "healthcheck" in service, name


def test_compose_keeps_what_must_last_in_declared_volumes(compose: dict[str, Any]) -> None:
    used = {volume.split(":")[0] for service in compose["services"].values() for volume in service.get("volumes", ())}
    assert used == set(compose["volumes"])


@pytest.mark.parametrize(
    ("name", "cls", "prefix"), [("backend", HubSettings, HUB_PREFIX), ("node", NodeConfig, NODE_PREFIX)]
)
def test_compose_sets_only_settings_that_exist(compose: dict[str, Any], name: str, cls: Any, prefix: str) -> None:
    known = {variable for variable, _, _ in settings.describe(cls, prefix=prefix)}
    # Read by uvicorn, the server under the hub.
    assert set(compose["services"][name]["environment"]) - known <= {"FORWARDED_ALLOW_IPS"}


@pytest.mark.parametrize("name", ["hub.Dockerfile", "node.Dockerfile"])
def test_an_image_is_built_from_files_that_exist_and_from_pinned_versions(name: str) -> None:
    text = (ROOT / "deploy" / name).read_text()
    copied = [word for words in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for word in words.split()]
    assert "constraints.txt" in copied
    assert "-c constraints.txt" in text
    assert [word for word in copied if not (ROOT / word).exists()] == []
    environment = re.findall(r"\b(COMPUTEPOOL_\w+)=", text)
    known = {
        v
        for cls, p in ((HubSettings, HUB_PREFIX), (NodeConfig, NODE_PREFIX))
        for v, _, _ in settings.describe(cls, prefix=p)
    }
    assert set(environment) <= known


@pytest.mark.parametrize(
    "text",
    ["a: 1\na: 2", "a:\n   b: 1", "a:\n  - b\n  c: 1", "a: b: c", "a: 'x'", "\ta: 1", "just words", "a: x # y"],
)
def test_control_yaml_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(AssertionError):
        read_yaml(text)
