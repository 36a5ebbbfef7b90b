"""How data is shown to people: colours, tables, lists that refresh, and hints."""
