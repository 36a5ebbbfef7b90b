"""A unit: one thread or task that takes leases, calls the handler and settles them."""
