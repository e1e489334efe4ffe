"""An optional package whose own import fails is not called missing: the error names the import that failed."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from whet.config import OptimizerConfig
from whet.engines.vllm.vllm_engine import _import_vllm
from whet.errors import UserError
from whet.files.hub import _downloaded
from whet.files.readers import read_file
from whet.models.adapters.nf4 import quantize
from whet.models.download.gguf_import import convert_gguf
from whet.models.text.tiktoken_bpe import tiktoken_tokenizer
from whet.runs.trackers import MLflow, Trackio, WeightsAndBiases
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.rollout_pool.ray_worker import join_cluster

NOWHERE = Path("nowhere")
USERS: dict[str, Callable[[], object]] = {  # package, and in brackets which use of it if there are several
    "tiktoken": lambda: tiktoken_tokenizer("gpt2"),
    "gguf": lambda: convert_gguf(NOWHERE / "a.gguf", NOWHERE / "model", dtype=torch.float32),
    "pyarrow": lambda: list(read_file(NOWHERE / "a.parquet")),
    "datasets": lambda: list(_downloaded("owner/name", "", "train", None)),
    "bitsandbytes": lambda: make_optimizer(torch.nn.Linear(2, 2), OptimizerConfig(name="adamw_8bit")),
    "bitsandbytes[nf4]": lambda: quantize(torch.zeros(2, 64)),
    "wandb": lambda: WeightsAndBiases(NOWHERE, {}),
    "mlflow": lambda: MLflow(NOWHERE, {}),
    "trackio": lambda: Trackio(NOWHERE, {}),
    "vllm": _import_vllm,
    "ray": lambda: join_cluster(1),
}


@pytest.mark.parametrize("user", USERS)
def test_an_import_error_inside_is_named(user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = user.partition("[")[0]
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("import part_that_is_missing")
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="No module named 'part_that_is_missing'") as caught:
        USERS[user]()
    assert f"the package {package} is installed and its import fails: ModuleNotFoundError" in str(caught.value)
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize("user", USERS)
def test_a_package_that_is_missing_is_named(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = user.partition("[")[0]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"needs the package {package}, which is not installed: pip install"):
        USERS[user]()
