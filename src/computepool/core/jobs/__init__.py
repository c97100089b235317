"""What a job is, which states its slices pass through, and who may finish one."""
