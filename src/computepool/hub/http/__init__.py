"""HTTP: parses, names the caller, calls one service function, shapes the answer. Nothing else."""
