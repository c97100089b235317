"""Cash in and out: the lives of top-ups and payouts, their limits, and what to believe of a provider's word."""
