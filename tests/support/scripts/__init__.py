"""Requests driven script by script, and tools that read the Lua."""
