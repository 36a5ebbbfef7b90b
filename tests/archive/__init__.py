"""Tests archives: what they hold, wherever their writer stops."""
