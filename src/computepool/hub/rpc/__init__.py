"""gRPC and the relay between hosts, in a process beside each hub: parses, names the caller, calls a service."""
