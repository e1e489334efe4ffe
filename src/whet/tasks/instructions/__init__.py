"""Instructions whose observance can be checked: IFEval."""
