"""How large a checkpoint may be. Apart from the rules, because the runner reads it too and imports little."""

CHECKPOINT_FILES_MAX = 256
CHECKPOINT_BYTES_MAX = 4_000_000_000
