"""Plain and latent attention side by side: equal parameters, and a result file."""

import pytest
import torch

from bench import latent_attention
from bench.command import run_command
from bench.results import read_result
from whet.models.layers.decoder_config import kv_bytes_per_token, parameter_count


@pytest.mark.parametrize("workload", [latent_attention.FULL, latent_attention.QUICK], ids=["full", "quick"])
def test_all_have_the_same_parameters(workload):
    found = latent_attention.configs(workload)
    assert list(found) == ["plain", "grouped", "latent"]
    step = 8 * 3 * workload.width * workload.layers  # of the width of MLPs
    for config in found.values():
        assert abs(parameter_count(config) - parameter_count(found["plain"])) <= step / 2


def test_the_bytes_of_the_page_by_hand():
    found = latent_attention.configs(latent_attention.FULL)
    cached = {name: kv_bytes_per_token(config, torch.bfloat16) for name, config in found.items()}
    assert cached == {"plain": 12 * 2 * 768 * 2, "grouped": 12 * 2 * 192 * 2, "latent": 12 * (256 + 32) * 2}
    assert list(cached.values()) == [36_864, 9_216, 6_912]


def test_quick_writes_a_result(tmp_path, capsys):
    assert run_command(latent_attention.main, ["--quick", "--out", str(tmp_path), "--commit", "abc"]) == 0
    (path,) = tmp_path.glob("latent-attention-*.json")
    result = read_result(path)
    assert result["quick"]
    quick = latent_attention.QUICK
    for side in result["sides"].values():
        for context in quick.contexts:
            seconds = side["contexts"][str(context)]["seconds"]
            assert len(seconds) == quick.repeats
            low, high = (quick.rows * quick.steps / pick(seconds[1:]) for pick in (max, min))
            assert low <= side["contexts"][str(context)]["tokens_per_second"] <= high
    size = 2 if torch.cuda.is_available() else 4
    assert f"| latent | {2 * (64 + 8) * size:,} |" in capsys.readouterr().out
