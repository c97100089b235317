"""Money: accounts with one side each, transfers that never change, and the verbs that move credits. Pure."""
