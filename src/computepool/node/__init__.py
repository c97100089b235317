"""The agent: what runs on a lent machine. It calls the hub, never the other way round, and trusts no job.

Refuses to know the hub's insides, web frameworks, databases and torch: an owner installs this on the PC they play on.
"""
