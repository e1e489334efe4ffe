"""Commands about recipes that train nothing: list, explain, plan and check them."""
