"""What a node is to the grid."""
