"""The explorer: a third driver, which interleaves the product's operations at every step."""
