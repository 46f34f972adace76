"""What runs on CUDA devices: Triton kernels and recorded steps."""
