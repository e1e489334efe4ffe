"""The two ways in which whet stops. Everything else that reaches the user as a traceback is a bug."""


class UserError(Exception):
    """The input is wrong: one line that says what, where and how to fix it. Exit code 2."""


class RunFailed(Exception):
    """The input was fine and the run broke: a reward raised, the loss is not finite, the disk is full. Exit code 1."""
