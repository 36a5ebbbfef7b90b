"""The third driver: interleaves the product's own operations at every step, and cuts them off."""
