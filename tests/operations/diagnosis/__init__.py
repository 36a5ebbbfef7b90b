"""doctor and fsck."""
