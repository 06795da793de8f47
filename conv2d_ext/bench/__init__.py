"""Measures convx against PyTorch's own convolution, in one process."""
