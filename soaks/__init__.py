"""Long trials, each a `make soak/<name>`; `make test` runs their short forms."""
