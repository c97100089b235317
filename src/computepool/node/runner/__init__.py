"""The small process between the agent and one job: the sandbox's parent, which outlives an agent's restart.

Knows one attempt and its state directory. Refuses to know the hub: it never opens a connection.
Standard library only, imported in full at start, so that an upgrade may replace the files under its feet.
"""
