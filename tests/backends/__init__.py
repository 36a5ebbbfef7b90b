"""The tests' own servers, clusters, containers and network."""
