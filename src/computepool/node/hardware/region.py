"""Which country this machine says it is in: from its time zone, where that belongs to one country."""

from __future__ import annotations

from computepool.node.hardware.port import Sight

_TABLE = "/usr/share/zoneinfo/zone.tab"


def find_region(sight: Sight) -> str | None:
    """ISO-2; the owner's word beats it. None: the clock is set to no country's time, as servers' are."""
    zone = _find_zone(sight)
    if not zone:
        return None
    for line in sight.read(_TABLE).splitlines():
        fields = line.split("\t")
        if len(fields) >= 3 and fields[2] == zone and not line.startswith("#"):
            return fields[0]
    return None


def _find_zone(sight: Sight) -> str:
    named = sight.read("/etc/timezone").strip()
    if "/" in named:
        return named
    try:
        target = str((sight.root / "etc/localtime").readlink())
    except OSError:
        return ""
    return target.partition("zoneinfo/")[2]
