"""What a job wants beyond a plain sandbox (its own image, hosts to reach, packages), and what owners allow of it.

Both are short words, so that hub and node judge by one rule: a want is `image NAME@DIGEST`, `egress HOST:PORT` or
`packages`; what is allowed is the same with patterns. A node that says nothing allows nothing of this. A job that
asks for more than the lightest sandbox wants `container-egress HOST:PORT`: not every stricter one has a way out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from computepool.core.jobs.isolation import IsolationLevel

IMAGE = "image"
EGRESS = "egress"
CONTAINER_EGRESS = "container-egress"
PACKAGES = "packages"
KINDS = (IMAGE, EGRESS, CONTAINER_EGRESS, PACKAGES)

# What one node may allow: as many patterns of this length.
ALLOWS_MAX = 256
ALLOW_LENGTH_MAX = 300


def list_wants(
    *,
    image: str | None,
    egress: Sequence[str],
    packages: Sequence[str],
    isolation: IsolationLevel = IsolationLevel.SANDBOXED,
) -> tuple[str, ...]:
    if image is None and not egress and not packages:
        return ()
    way_out = CONTAINER_EGRESS if isolation.meets(IsolationLevel.CONTAINER) else EGRESS
    return tuple(
        sorted(
            [
                *([f"{IMAGE} {image}"] if image is not None else []),
                *{f"{way_out} {target.lower()}" for target in egress},
                *([PACKAGES] if packages else []),
            ]
        )
    )


def list_allows(
    *, images: Iterable[str], egress: Iterable[str], container_egress: Iterable[str], has_packages: bool
) -> tuple[str, ...]:
    return tuple(
        sorted(
            {
                *(f"{IMAGE} {pattern}" for pattern in images),
                *(f"{EGRESS} {pattern}" for pattern in egress),
                *(f"{CONTAINER_EGRESS} {pattern}" for pattern in container_egress),
                *((PACKAGES,) if has_packages else ()),
            }
        )
    )


def list_allow_faults(allows: Sequence[str]) -> list[str]:
    if len(allows) > ALLOWS_MAX:
        return [f"allows has {len(allows)} patterns; {ALLOWS_MAX} are allowed: use * in them"]
    strange = [each for each in allows if not _is_allow(each)]
    return [f"allows {each[:100]!r} is not image NAME, egress HOST:PORT or packages" for each in strange]


def list_refused(wants: Iterable[str], allows: Collection[str]) -> tuple[str, ...]:
    """What of these is not allowed."""
    return tuple(want for want in wants if not _is_allowed(want, allows))


def list_of(words: Iterable[str], *kinds: str) -> tuple[str, ...]:
    """The names or patterns of these kinds, in order."""
    return tuple(sorted({name for kind, name in map(_split, words) if kind in kinds}))


def is_image_allowed(image: str, patterns: Iterable[str]) -> bool:
    """By its name without the digest, or with it where the owner allows one image and no other of that name."""
    name = image.partition("@")[0]
    return any(fnmatchcase(image if "@" in pattern else name, pattern) for pattern in patterns)


def is_host_allowed(target: str, patterns: Iterable[str]) -> bool:
    """Whether host:port fits one of the patterns; `*` stands for any part of a host name, never for a port."""
    host, _, port = target.lower().rpartition(":")
    for pattern in patterns:
        wanted_host, _, wanted_port = pattern.lower().rpartition(":")
        if port == wanted_port and fnmatchcase(host, wanted_host):
            return True
    return False


def _is_allowed(want: str, allows: Collection[str]) -> bool:
    kind, name = _split(want)
    if kind == PACKAGES:
        return PACKAGES in allows
    patterns = list_of(allows, kind)
    return is_image_allowed(name, patterns) if kind == IMAGE else is_host_allowed(name, patterns)


def _is_allow(word: str) -> bool:
    kind, name = _split(word)
    if len(word) > ALLOW_LENGTH_MAX or not word.isprintable() or " " in name:
        return False
    return word == PACKAGES if kind == PACKAGES else kind in KINDS and bool(name)


def _split(word: str) -> tuple[str, str]:
    kind, _, name = word.partition(" ")
    return kind, name
