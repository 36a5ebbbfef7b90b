"""What a run recorded, and the figures made from it."""
