"""Tests the asyncio driver alone."""
