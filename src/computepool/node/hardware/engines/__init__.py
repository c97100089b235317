"""What can compute the products of core/trust/products.py here: torch, OpenCL, numpy, or plain Python.

Imported only by the process that measures: the agent itself never loads what computes.
"""
