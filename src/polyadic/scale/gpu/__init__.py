"""CUDA graphs and Triton kernels for mini-batch sweeps on a GPU."""
