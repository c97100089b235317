"""The embedded database: a PostgreSQL that the hubs of one machine start, share, watch and stop.

This room knows processes, folders and locks. It refuses to know tables, queries or a database driver:
whoever calls it gets a DSN and nothing else. How it works: docs/internals/embedded-postgres.md.
"""

from computepool.hub.store.embedded.binaries import binaries_dir
from computepool.hub.store.embedded.folder import default_data_dir
from computepool.hub.store.embedded.supervisor import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "binaries_dir", "default_data_dir"]
