"""Progress on stderr: `--watch` and the bar."""
