"""The source of a program that runs code as a notebook does; only a sandbox may run it."""

# Runs the code as a notebook does: what it prints, the value of a last line that is an expression, and its error.
RUNNER = """
def _run(source, longest):
    import ast, contextlib, io, traceback
    printed = io.StringIO()
    names = {"__name__": "__main__"}
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            body = ast.parse(source, "<code>").body
            last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), "<code>", "exec"), names)
            value = None if last is None else eval(compile(last, "<code>", "eval"), names)
            if value is not None:
                print(repr(value))
    except BaseException as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<code>"]
        where = f" (line {own[-1].lineno})" if own else ""
        printed.write("".join(traceback.format_exception_only(type(error), error)).strip() + where)
    return printed.getvalue().strip()[:longest]
"""
