"""Kernels of a call, longest first."""

from bench.kernel_times import longest


def test_what_is_not_named_is_summed_up_at_the_end():
    times = {"short": (2, 0.1), "long": (1, 0.5), "tiny": (7, 0.01), "middle": (3, 0.2)}
    assert longest(times, most=2) == [
        {"kernel": "long", "runs": 1, "seconds": 0.5},
        {"kernel": "middle", "runs": 3, "seconds": 0.2},
        {"kernel": "2 others", "runs": 9, "seconds": 0.1 + 0.01},
    ]


def test_nothing_is_summed_up_where_all_are_named():
    assert longest({"only": (4, 0.25)}, most=2) == [{"kernel": "only", "runs": 4, "seconds": 0.25}]
