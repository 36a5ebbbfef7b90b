"""Tests the operations, most of them through the blocking and the asyncio driver."""
