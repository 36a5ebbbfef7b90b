"""Scripts of plain lists and of topics."""
