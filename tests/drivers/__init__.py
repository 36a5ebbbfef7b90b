"""Both drivers."""
