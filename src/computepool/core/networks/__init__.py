"""Networks cut into VNodes: what a network is, what is wrong with one, what it costs. Pure: no torch, no I/O."""
