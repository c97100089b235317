"""Programs that the demo hands to the grid. They run on the nodes, with nothing but the standard library of
whatever Python 3 is there, and are never imported: an installed package has to bring them along as files."""
