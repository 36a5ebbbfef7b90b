"""The handler: finds it, calls it, and collects the outcomes of its calls."""
