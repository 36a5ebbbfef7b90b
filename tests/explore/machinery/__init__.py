"""What explores: interleavings, faults, states and their canonical form."""
