"""Keys, scripts and ACL rules."""
