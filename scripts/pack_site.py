"""Makes a folder that a hub serves out of Next's static export: a list of its files, their gzip twins, and for each
page the hashes of the scripts that stand in it.

    python scripts/pack_site.py web/out                  into src/computepool/hub/site, for the wheel
    python scripts/pack_site.py web/out --to /srv/site   elsewhere, for COMPUTEPOOL_HUB_SITE_DIR
    ... --nginx /etc/frontend/policies.conf              and the hashes as a map for deploy/frontend.nginx.conf
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import mimetypes
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "computepool" / "hub" / "site"
GZIP_BYTES_MIN = 512
PLAIN = {".html", ".js", ".css", ".json", ".svg", ".txt", ".xml", ".map", ".webmanifest"}
# What an attacker would like to have run is refused where it cannot be told from ours.
DATA_BLOCKS = ("application/json", "application/ld+json")


class InlineScripts(HTMLParser):
    """Collects the texts of scripts that stand in the page itself, and what no policy of hashes can allow."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.texts: list[str] = []
        self.faults: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        handlers = [name for name, _ in attrs if name.startswith("on")]
        if handlers:
            self.faults.append(f"<{tag} {handlers[0]}=...> would not run: the policy allows no inline handlers")
        if tag == "script" and "src" not in given and given.get("type") not in DATA_BLOCKS:
            self._inside = True
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = False


def hash_scripts(html: str) -> tuple[list[str], list[str]]:
    """Hashes as a policy writes them, and faults."""
    parser = InlineScripts()
    # Browsers read line ends so before they hash.
    parser.feed(html.replace("\r\n", "\n").replace("\r", "\n"))
    parser.close()
    hashes = [
        "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in dict.fromkeys(parser.texts)
    ]
    return sorted(set(hashes)), parser.faults


def list_paths(name: str) -> str:
    """Where a file of the export is asked for."""
    if name == "index.html":
        return "/"
    return f"/{name.removesuffix('index.html')}" if name.endswith("/index.html") else f"/{name}"


def pack(source: Path, target: Path) -> tuple[int, list[str]]:
    """How many files, and what is wrong with them."""
    if not (source / "index.html").exists():
        return 0, [f"{source} has no index.html; build the site first (make web)"]
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
    files: list[dict[str, Any]] = []
    faults = []
    for path in sorted(target.rglob("*")):
        if not path.is_file():
            continue
        name = path.relative_to(target).as_posix()
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        if path.suffix in (".html", ".js", ".css", ".txt", ".svg"):
            media_type = {".js": "text/javascript"}.get(path.suffix, media_type) + "; charset=utf-8"
        entry: dict[str, Any] = {"path": list_paths(name), "file": name, "media_type": media_type}
        if name.startswith("_next/static/"):
            entry["immutable"] = True
        if path.suffix == ".html":
            entry["script_hashes"], found = hash_scripts(path.read_text())
            faults += [f"{name}: {fault}" for fault in found]
        if path.suffix in PLAIN and path.stat().st_size >= GZIP_BYTES_MIN:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
        files.append(entry)
    (target / "site.json").write_text(json.dumps({"files": files}, indent=1) + "\n")
    return len(files), faults


def render_nginx_map(site: Path) -> str:
    """By file the hashes of its scripts, for a policy that nginx writes."""
    files = json.loads((site / "site.json").read_text())["files"]
    hashes = {each["file"]: " ".join(f"'{one}'" for one in each.get("script_hashes", ())) for each in files}
    lines = [f'    "/{name}" "{text}";' for name, text in hashes.items() if text]
    return "\n".join(["map $uri $script_hashes {", '    default "";', *lines, "}", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="Next's output folder")
    parser.add_argument("--to", type=Path, default=TARGET)
    parser.add_argument("--nginx", type=Path, help="write the hashes of scripts here, too, as a map of nginx")
    options = parser.parse_args()
    count, faults = pack(options.source, options.to)
    if options.nginx and count:
        options.nginx.write_text(render_nginx_map(options.to))
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    print(f"{count} files in {options.to}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
