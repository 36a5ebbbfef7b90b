"""The Lua scripts, one by one, on real servers."""
