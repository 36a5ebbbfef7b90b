"""Runs the cluster of cluster-compose.yml in real containers: `make compose`."""
