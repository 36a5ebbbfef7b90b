"""The fleet of workers and the faults that it has to survive."""
