"""The torch side of networks: modules, optimizers, the engine that computes VNodes, and the streams between them."""
