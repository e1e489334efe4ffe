"""Reading the findings of check_loss."""


def outcomes(findings, outcome):
    return {finding.check: finding.sentence for finding in findings if finding.outcome == outcome}


def only_failure(findings, check):
    """The sentence of the one check that failed."""
    failed = outcomes(findings, "failed")
    assert set(failed) == {check}, failed
    return failed[check]
