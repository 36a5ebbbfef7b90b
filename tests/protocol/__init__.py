"""Tests keys, scripts and ACL rules."""
