"""Payment providers: how cash is asked for and sent. They move cash and know nothing of the ledger."""
