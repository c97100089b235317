"""Which hub, and as whom: by argument, then environment (HUB_URL, COMPUTEPOOL_KEY), then the config file.

The file's key belongs to the file's hub and is never sent to another one.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from computepool.settings import InvalidSettings

_FILE_KEYS = ("hub_url", "key")


@dataclass(frozen=True, slots=True)
class Settings:
    hub_url: str
    # Absent for the few calls that need no account: looking at the hub, signing up, signing in.
    key: str | None


def resolve_settings(
    *,
    hub_url: str | None = None,
    key: str | None = None,
    env: Mapping[str, str] | None = None,
    path: Path | None = None,
) -> Settings:
    """An empty `key` means "none", whatever environment and file say."""
    env = os.environ if env is None else env
    file = _read(path or config_path(env))
    chosen_url = hub_url or env.get("HUB_URL") or file.get("hub_url")
    if not chosen_url:
        raise InvalidSettings("No hub is named. Set HUB_URL, give --hub-url, or sign in once: computepool sign-in")
    chosen_url = tidy_hub_url(chosen_url)
    if key is None:
        own_hub = "hub_url" in file and tidy_hub_url(file["hub_url"]) == chosen_url
        key = env.get("COMPUTEPOOL_KEY") or (file.get("key") if own_hub else None)
    return Settings(chosen_url, key or None)


def save_settings(*, hub_url: str, key: str, env: Mapping[str, str] | None = None, path: Path | None = None) -> Path:
    """Write the file, readable by its owner only, from the first byte on and whole or not at all."""
    path = path or config_path(os.environ if env is None else env)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # JSON strings are valid TOML strings.
    text = f"hub_url = {json.dumps(tidy_hub_url(hub_url))}\nkey = {json.dumps(key)}\n"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)
    return path


def config_path(env: Mapping[str, str]) -> Path:
    root = env.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "computepool" / "config.toml"


def tidy_hub_url(url: str) -> str:
    """One spelling per hub, so that two of them can be compared."""
    url = url.strip().rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSettings(f"{url!r} is not a hub's address. It looks like https://hub.example.org")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidSettings("A hub's address holds no user name, query or fragment. Give the key with --key.")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path}"


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    content = _parse_toml(text, path)
    faults = [_explain(name) for name in content if name not in _FILE_KEYS]
    faults += [f"{name} must be a text" for name in _FILE_KEYS if not isinstance(content.get(name, ""), str)]
    if faults:
        raise InvalidSettings(f"{path} cannot be used: " + "; ".join(faults))
    return {name: str(value) for name, value in content.items()}


def _parse_toml(text: str, path: Path) -> dict[str, object]:
    # Here, and not above: a program that gives hub and key itself never pays for the parser.
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{path} is not valid TOML: {error}") from None


def _explain(name: str) -> str:
    close = difflib.get_close_matches(name, _FILE_KEYS, n=1)
    return f"{name} is not a setting" + (f", did you mean {close[0]}?" if close else "")
