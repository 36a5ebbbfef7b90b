"""What the guide and the samples show is run here."""
