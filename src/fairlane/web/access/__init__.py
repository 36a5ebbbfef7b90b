"""Who may call: bearer tokens and their scopes."""
