"""Writes a kernel setting: the value that it has anyway."""

from probe import report, works

PATH = "/proc/sys/kernel/printk_ratelimit"


def rewrite() -> None:
    with open(PATH, "r+b", buffering=0) as file:
        value = file.read()
        file.seek(0)
        file.write(value)


report(works(rewrite))
