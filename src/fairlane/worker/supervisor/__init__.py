"""The supervisor: keeps leases alive and enforces time limits, and runs no handler."""
