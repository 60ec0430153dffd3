"""What a first reading can skip: checkpoints and GPU kernels."""
