"""The asyncio driver alone."""
