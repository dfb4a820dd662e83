"""What is counted exactly, with no constant of any device: parameters, FLOPs, buckets and the bytes of collectives."""
