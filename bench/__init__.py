"""Side-by-side measurements of whet and its peers, run from the repository's root: `python -m bench.cpu`, `bench.gpu`.

Each measurement is a process of its own (`bench.side`), so that nothing that one side leaves behind helps or hurts the
next. Results are JSON files; `bench.table` makes docs/performance.md from them. Not part of the installed package.
"""
