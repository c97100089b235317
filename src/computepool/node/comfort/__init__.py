"""Whether this machine may be lent now: rules and decision are pure, readers look at the machine, the watch acts."""
