"""Prices: rate card, regions, offers, spot, the price of a match, quotes, earnings. Knows nothing of placement."""
