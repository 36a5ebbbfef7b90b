"""Runs operations against a real Redis: `sync` blocks, `aio` awaits."""
