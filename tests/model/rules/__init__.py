"""The rules of the machine: what producers, workers, maintenance and faults may do."""
