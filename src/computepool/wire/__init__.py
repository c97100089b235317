"""The messages that cross the wire, shared by hub, node and SDK. No logic.

Unknown fields are refused in what a client sends (a misspelt requirement must not be ignored) and
ignored in what it receives (an older client must understand a newer hub).
"""
