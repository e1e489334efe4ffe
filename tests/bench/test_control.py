"""The bench of batched environments writes a result that says how it was measured."""

from bench.control import PHASES, main
from bench.results import read_result


def test_a_quick_run_writes_a_result(tmp_path):
    main(["--quick", "--device", "cpu", "--copies", "8,16", "--steps", "2", "--to", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    result = read_result(path)
    assert result["quick"]
    rows = result["sides"]["whet"]
    assert [row["copies"] for row in rows] == result["workload"]["copies"] == [8, 16]
    for row in rows:
        assert set(row["seconds"]) == set(PHASES)
        assert row["collected_a_second"] > row["steps_a_second"] > 0
