"""The runs on a real cluster, and in a network with partitions."""
