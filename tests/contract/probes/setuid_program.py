"""Runs a program with the setuid bit. The loader hides its auxiliary vector if that bit had any effect."""

import os
import subprocess

from probe import report

done = subprocess.run(
    ["/usr/bin/su", "--version"], env={"LD_SHOW_AUXV": "1"}, stdout=subprocess.PIPE, check=False, text=True
)
report(os.path.exists("/usr/bin/su") and "AT_SECURE:" not in done.stdout)
