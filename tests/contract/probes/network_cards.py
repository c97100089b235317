"""Sees a network card other than loopback."""

from probe import report

with open("/proc/net/dev", encoding="ascii") as lines:
    names = [line.split(":")[0].strip() for line in lines if ":" in line]
report(any(name != "lo" for name in names), names)
