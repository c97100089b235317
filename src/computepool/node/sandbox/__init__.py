"""Where a stranger's code is locked in: one port, several backends, and the limits they share.

Knows the kernel's walls. Refuses to know hubs, leases and money, and refuses to run a job without walls.
Standard library only: the runner, which imports this room, must start fast and stay small.
"""
