"""Makes a user namespace, in which it would be root towards the kernel."""

from probe import libc, report

CLONE_NEWUSER = 0x10000000
report(libc.unshare(CLONE_NEWUSER) == 0)
