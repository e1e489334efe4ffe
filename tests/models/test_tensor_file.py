"""Files that are written one tensor at a time, and models that are read without being copied."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.small import small_model
from whet.models.load import load_model
from whet.models.storage.safetensors_files import fingerprint
from whet.models.storage.tensor_file import DTYPES, Named, StoredItems, TensorFile, Whole, write_items


def tensors() -> dict[str, Tensor]:
    """Of every dtype, with names in another order than the dtypes, a scalar, and one without numbers."""
    generator = torch.Generator().manual_seed(0)
    some = [(torch.rand(n, 3, generator=generator) * 100).to(dtype) for n, dtype in enumerate(DTYPES)]
    named = {f"layer {n % 3}/é{n}": tensor for n, tensor in enumerate(some)}
    flat = {f"z{n}": tensor.flatten().clone() for n, tensor in enumerate(reversed(some))}
    return named | flat | {"a": torch.tensor(3.0)}


@pytest.mark.parametrize("backwards", [False, True])
def test_the_bytes_are_those_of_safetensors(backwards: bool, tmp_path: Path) -> None:
    """In whatever order the tensors come."""
    named = tensors()
    save_file(named, tmp_path / "theirs", metadata={"format": "pt"})
    file = TensorFile(tmp_path / "ours", named, {"format": "pt"})
    for name in sorted(named, reverse=backwards):
        file.write(name, named[name])
    file.require_all()
    file.close()
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    save_file({}, tmp_path / "theirs")
    write_items(tmp_path / "ours", lambda _: iter(()))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_tensor_is_whole_only_while_it_is_written(tmp_path: Path) -> None:
    """Shapes are asked for before numbers; a process that writes nothing takes part in all of them."""
    asked: list[str] = []
    named = tensors()

    def items(whole: Whole) -> Named:
        return ((name, whole(tensor)) for name, tensor in named.items())

    def whole(tensor: Tensor) -> Tensor:
        asked.append(str(tensor.dtype))
        return tensor

    write_items(tmp_path / "file", items, whole)
    assert len(asked) == len(named)
    write_items(None, items, whole)
    assert len(asked) == 2 * len(named)
    with StoredItems(tmp_path / "file") as stored:
        assert set(stored) == set(named)
        assert all(torch.equal(stored[name], named[name]) for name in stored)
        with pytest.raises(KeyError):
            stored["absent"]
    assert not StoredItems(tmp_path / "no file")


def test_a_tensor_that_was_forgotten_is_noticed(tmp_path: Path) -> None:
    named = tensors()
    file = TensorFile(tmp_path / "file", named)
    file.write("a", named["a"])
    with pytest.raises(AssertionError, match="lacks"):
        file.require_all()
    with pytest.raises(AssertionError, match="z1"):
        file.write("z1", named["a"])
    file.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3"])
def test_a_mapped_model_is_the_stored_one(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """In its own dtype, with the fingerprint of the copied one; and a file that is deleted stays readable."""
    model, _ = small_model(family)
    model.save(tmp_path, dtype)
    read, mapped = load_model(tmp_path), load_model(tmp_path, mapped=True)
    assert {parameter.dtype for parameter in mapped.parameters()} == {dtype}
    (tmp_path / "model.safetensors").unlink()
    assert fingerprint(mapped) == fingerprint(read)
    assert all(torch.equal(one, two.float()) for one, two in zip(read.parameters(), mapped.parameters(), strict=True))
