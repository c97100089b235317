"""The hub: takes jobs, hands them to nodes, keeps the record. Stateless; any number share one PostgreSQL."""
