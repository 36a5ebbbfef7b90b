"""What the package offers: its names, its two faces, its options, its wheel."""
