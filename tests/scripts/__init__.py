"""Tests the Lua scripts, one by one, on real servers."""
