"""Workers and other programs in processes of their own."""
