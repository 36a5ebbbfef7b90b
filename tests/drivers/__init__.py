"""Tests the blocking and the asyncio driver."""
