"""A package index that is a folder: wheels and source archives made on the spot."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path


def add_wheel(index: Path, name: str, version: str = "1.0", *, needs: str = "", tag: str = "py3-none-any") -> None:
    """A wheel of one module, listed as an index lists it."""
    stem = f"{name}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    files = {
        f"{name}.py": f"VERSION = {version!r}\n" + ("x" * 1000 if name == "large" else ""),
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    files[f"{stem}.dist-info/RECORD"] = record + f"{stem}.dist-info/RECORD,,\n"
    folder = index / name.replace("_", "-")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    _list_folder(folder)


def add_sdist(index: Path, name: str, marker: Path) -> None:
    """A source archive whose setup.py would leave a mark if anybody ran it."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-1.0.tar.gz", "w:gz") as tar:
        text = (
            f"open({str(marker)!r}, 'w').write('ran')\nfrom setuptools import setup; setup(name={name!r})\n".encode()
        )
        entry = tarfile.TarInfo(f"{name}-1.0/setup.py")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    _list_folder(folder)


def _list_folder(folder: Path) -> None:
    links = "".join(f'<a href="{path.name}">{path.name}</a>' for path in folder.iterdir() if path.suffix != ".html")
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
