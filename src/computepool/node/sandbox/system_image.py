"""The image for jobs that bring none: empty folders and links, into which the machine's own /usr is shown read-only.

A few kilobytes, the same bytes everywhere, so that its name can be its content.
"""

from __future__ import annotations

import hashlib
import io
import tarfile

from computepool.node.sandbox.bubblewrap_line import ETC_FILES

FOLDERS = ("dev", "environment", "etc", "job", "proc", "run", "sys", "tmp", "usr", "var")
# Docker puts its init into /sbin, which must therefore be a folder of the image's own.
OWN_FOLDERS = ("sbin",)
LINKS = ("bin", "lib", "lib32", "lib64")
# The loader's cache is the machine's, shown over an empty file.
FILES = {**ETC_FILES, "/etc/ld.so.cache": ""}


def write_tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted((*FOLDERS, *OWN_FOLDERS, "etc/alternatives")):
            # Engines give what they mount there the mode of what lay below.
            tar.addfile(_describe(name, tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755))
        for path, text in FILES.items():
            entry = _describe(path.lstrip("/"), tarfile.REGTYPE, 0o644)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name in LINKS:
            entry = _describe(name, tarfile.SYMTYPE, 0o777)
            entry.linkname = f"usr/{name}"
            tar.addfile(entry)
    return content.getvalue()


def find_tag(tar: bytes) -> str:
    return hashlib.sha256(tar).hexdigest()[:12]


def _describe(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry
