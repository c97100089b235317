"""The dashboard: a folder of static files, packed by `scripts/pack_site.py`, served as its list says and no further.

Everything is read once, at the start. A page runs only the scripts that were there when it was packed: its
Content-Security-Policy names their hashes.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from computepool.core.accounts.roles import Role
from computepool.core.errors import ComputePoolError
from computepool.hub.context import Hub
from computepool.hub.http.routing import find_header, read_credential
from computepool.settings import InvalidSettings

log = logging.getLogger("computepool.http")

LIST_NAME = "site.json"
PACKAGED = Path(__file__).parent.parent / "site"
BYTES_MAX = 100_000_000
# Pages that are not there for those who are no operators.
OPERATOR_PAGES = "/operator/"
API = "/v1/"
# Of the hub itself.
OWN_FILES = "/static/"

IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATED = "no-cache"


class PackedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the list: where it is asked for, and what is sent."""

    path: str
    file: str
    media_type: str
    # Its name changes with its content.
    immutable: bool = False
    # Of a page: hashes of its inline scripts, as a policy writes them.
    script_hashes: tuple[str, ...] = ()


class PackedSite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    files: tuple[PackedFile, ...]


@dataclass(frozen=True, slots=True)
class SiteFile:
    content: bytes
    gzipped: bytes | None
    etag: str
    headers: Mapping[str, str]
    media_type: str


class Site:
    def __init__(self, files: Mapping[str, SiteFile]) -> None:
        self._files = files

    def __contains__(self, path: str) -> bool:
        return path in self._files

    async def answer(self, hub: Hub, scope: Scope) -> Response | None:
        """What the site has at this path; None if it has nothing to do with it."""
        path: str = scope["path"]
        if path.startswith(API):
            return None
        if (path + "/").startswith(OPERATOR_PAGES) and not await _is_operator(hub, scope):
            return self._send_missing(scope)
        if path in self._files:
            return _send(self._files[path], scope)
        if f"{path}/" in self._files:
            query = scope["query_string"].decode("latin-1")
            # Without a host, so that it holds behind any proxy.
            target = f"{path}/" + (f"?{query}" if query else "")
            return Response(status_code=308, headers={"Location": target, **SAFE_HEADERS})
        # A person who followed a link gets a page; programs get the API's own words.
        is_person = "text/html" in (find_header(scope, b"accept") or "")
        return self._send_missing(scope) if is_person and not path.startswith(OWN_FILES) else None

    def _send_missing(self, scope: Scope) -> Response:
        missing = self._files.get("/404/") or self._files.get("/404.html")
        return _send(missing, scope, status=404) if missing else Response("not found\n", status_code=404)


SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def say_policy(script_hashes: tuple[str, ...] = ()) -> str:
    scripts = " ".join(["'self'", *(f"'{each}'" for each in script_hashes)])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src 'self'; connect-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
        "form-action 'self'"
    )


def load_site(folder: str) -> Site | None:
    """From the folder that is named, or the one in the package; None if nobody has built it."""
    root = Path(folder) if folder else PACKAGED
    listed = root / LIST_NAME
    if not listed.exists():
        if folder:
            raise InvalidSettings(
                f"COMPUTEPOOL_HUB_SITE_DIR is {folder}, where no {LIST_NAME} is. Build the site (make web), or leave "
                "the setting out."
            )
        log.info("site_absent hint='make web (Node 20.9 or newer, with npm), or a wheel that has it inside'")
        return None
    try:
        packed = msgspec.json.decode(listed.read_bytes(), type=PackedSite)
        return Site({each.path: _read(root, each) for each in packed.files})
    except (msgspec.DecodeError, OSError) as error:
        raise InvalidSettings(f"The site in {root} cannot be read: {error}. Build it again (make web).") from error


def _read(root: Path, packed: PackedFile) -> SiteFile:
    path = (root / packed.file).resolve()
    if not path.is_relative_to(root.resolve()):
        raise OSError(f"{packed.file} is not inside of the site")
    content = path.read_bytes()
    beside = path.with_name(path.name + ".gz")
    gzipped = beside.read_bytes() if beside.exists() else None
    if gzipped is not None and gzip.decompress(gzipped) != content:
        raise OSError(f"{beside.name} is of another build than {packed.file}")
    headers = {**SAFE_HEADERS, "Cache-Control": IMMUTABLE if packed.immutable else REVALIDATED}
    if packed.media_type.startswith("text/html"):
        headers["Content-Security-Policy"] = say_policy(packed.script_hashes)
    if gzipped is not None:
        headers["Vary"] = "Accept-Encoding"
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return SiteFile(content, gzipped, etag, headers, packed.media_type)


def _send(file: SiteFile, scope: Scope, *, status: int = 200) -> Response:
    headers = {**file.headers, "ETag": file.etag}
    if status == 200 and find_header(scope, b"if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    content = file.content
    if file.gzipped is not None and "gzip" in (find_header(scope, b"accept-encoding") or ""):
        content = file.gzipped
        headers["Content-Encoding"] = "gzip"
    if scope["method"] == "HEAD":
        return Response(
            status_code=status,
            headers={**headers, "Content-Length": str(len(content))},
            media_type=file.media_type,
        )
    return Response(content, status_code=status, headers=headers, media_type=file.media_type)


async def _is_operator(hub: Hub, scope: Scope) -> bool:
    try:
        return Role.OPERATOR in (await hub.callers.get_account(read_credential(hub, scope))).roles
    except ComputePoolError:
        return False
