"""ComputePool: an open compute grid."""

__version__ = "0.1.0"
