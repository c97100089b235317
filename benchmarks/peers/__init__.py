"""Other people's task queues behind one front, each in the form that was fastest here.

Runs in a virtual environment of its own (`environment.py`) and imports nothing of ComputePool. A module per peer:
`open_peer()` for the side that submits and counts, `WORKER` for the process that runs the jobs.
"""
