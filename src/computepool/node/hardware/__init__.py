"""What machine this is. Knows how to read it, and refuses to judge it: tiers and prices are the hub's."""
