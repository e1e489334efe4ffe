"""The rules: each reads a `History` and says what it sees, or nothing. Pure functions; `all_rules` lists them."""
