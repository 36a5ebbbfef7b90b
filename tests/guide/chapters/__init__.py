"""The chapters of the guide run, block by block."""
