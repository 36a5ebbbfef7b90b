"""Who may call, how often, and how much: tokens, rights, rates, bounds."""
