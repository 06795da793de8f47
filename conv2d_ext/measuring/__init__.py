"""Times of calls: the clock, the machine's limits, one convolution, and one step of a model."""
