"""Log-probs of a reference: right, computed once, kept by content, and computed again when the file is bad."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.small import small_model
from tests.train import rows_on_disk as on_disk
from whet.config.parts import UpdateConfig
from whet.distributed.world import World
from whet.models.storage.safetensors_files import fingerprint
from whet.records import Row
from whet.train.rows import reference_cache
from whet.train.rows.reference_cache import cache_directory, reference_logprobs

ALONE = World.alone()
SETTINGS = UpdateConfig()


def row(tokens, mask):
    return Row(tokens=tuple(tokens), mask=tuple(bool(on) for on in mask))


ROWS = [row([3, 1, 4, 1, 5], [0, 0, 1, 1, 1]), row([2, 7, 1], [0, 1, 1]), row([1, 6, 1, 8], [0, 0, 0, 1])]


class Counting(torch.nn.Module):
    """A model that says how often it was read."""

    def __init__(self, model):
        super().__init__()
        self.model, self.reads = model, 0
        self.context, self.vocab_size, self.head_weight = model.context, model.vocab_size, model.head_weight

    def hidden(self, tokens, lengths):
        self.reads += 1
        return self.model.hidden(tokens, lengths)

    def hidden_packed(self, packing):
        self.reads += 1
        return self.model.hidden_packed(packing)

    def head(self, states):
        return self.model.head(states)


@pytest.fixture
def model():
    return Counting(small_model()[0])


def by_hand(model, one):
    with torch.no_grad():
        logits = model.head(model.hidden(torch.tensor([one.tokens]), torch.tensor([len(one.tokens)])))[0].double()
    table = logits.log_softmax(dim=-1)
    return sum(float(table[t - 1, one.tokens[t]]) for t in range(len(one.tokens)) if one.mask[t])


def logprobs(model, directory, rows=ROWS, name="m", settings=SETTINGS):
    return reference_logprobs(model, name, rows, settings, ALONE, directory)


def test_they_are_those_of_single_tokens_in_the_order_of_the_rows(model, tmp_path):
    assert logprobs(model, tmp_path) == pytest.approx([by_hand(model.model, one) for one in ROWS], abs=2e-5)


def test_they_are_computed_once(model, tmp_path):
    first = logprobs(model, tmp_path)
    reads = model.reads
    assert reads > 0
    assert logprobs(model, tmp_path) == first
    assert model.reads == reads
    (kept,) = tmp_path.iterdir()
    assert load_file(kept)["logprobs"].tolist() == first


def test_how_rows_are_read_together_changes_nothing(model, tmp_path, monkeypatch):
    first = logprobs(model, tmp_path / "a")
    monkeypatch.setattr(reference_cache, "CHUNK_ROWS", 2)
    small = logprobs(model, tmp_path / "b", settings=UpdateConfig(micro_batch_tokens=1, padding_free=False))
    assert small == pytest.approx(first, abs=2e-5)
    before = model.reads
    assert (
        logprobs(model, tmp_path / "a", settings=UpdateConfig(micro_batch_tokens=1)) == first
    )  # what is kept, is kept
    assert model.reads == before


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:2],
        ROWS[::-1],
        [row([3, 1, 4, 1, 6], ROWS[0].mask), *ROWS[1:]],
        [row(ROWS[0].tokens, [0, 0, 0, 1, 1]), *ROWS[1:]],
        [row(ROWS[0].tokens, [0, 1, 1, 0, 1]), *ROWS[1:]],
    ],
    ids=["fewer", "order", "tokens", "mask", "mask with a hole"],
)
def test_other_content_is_computed_anew(model, tmp_path, rows):
    logprobs(model, tmp_path)
    assert logprobs(model, tmp_path, rows=rows) == pytest.approx([by_hand(model.model, one) for one in rows], abs=2e-5)
    assert len(list(tmp_path.iterdir())) == 2


def test_masks_with_the_same_start_and_count_are_not_the_same(model, tmp_path):
    one, two = row([3, 1, 4, 1, 5], [0, 1, 0, 1, 0]), row([3, 1, 4, 1, 5], [0, 1, 0, 0, 1])
    found = [logprobs(model, tmp_path, rows=[one])[0], logprobs(model, tmp_path, rows=[two])[0]]
    assert found == pytest.approx([by_hand(model.model, one), by_hand(model.model, two)], abs=2e-5)


def test_another_model_is_another_name(tmp_path):
    one, two = Counting(small_model(seed=0)[0]), Counting(small_model(seed=1)[0])
    assert fingerprint(one.model) != fingerprint(two.model)
    first = logprobs(one, tmp_path, name=fingerprint(one.model))
    second = logprobs(two, tmp_path, name=fingerprint(two.model))
    assert second == pytest.approx([by_hand(two.model, one_) for one_ in ROWS], abs=2e-5)
    assert first != second


def test_another_kind_of_device_is_another_place(model, tmp_path, monkeypatch):
    """Sums round differently there."""
    monkeypatch.setattr(reference_cache, "_computed", lambda _model, rows, *_: [0.0] * len(rows))
    for device in ("cpu", "cuda", "cuda:1"):
        world = World(rank=0, size=1, device=torch.device(device))
        reference_logprobs(model, "m", ROWS, SETTINGS, world, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_weights_under_another_config_are_another_name(tmp_path, monkeypatch):
    """Positions turn by other angles: for the start of the run, and for a reference that is named."""
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    pairs = on_disk.pairs(tmp_path / "pairs.jsonl", 12)
    on_disk.saved_model(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    config = tmp_path / "two" / "config.json"
    other = json.loads(config.read_text())
    config.write_text(json.dumps({**other, "rms_norm_eps": 0.5}))
    made = []
    for start, changes in (("one", {}), ("two", {}), ("one", {"reference": "one"}), ("one", {"reference": "two"})):
        named = {key: str(tmp_path / name) for key, name in changes.items()}
        on_disk.trainer(tmp_path / start, pairs, "dpo", steps=1, **named)
        made.append(len(list(cache_directory().iterdir())))
    assert made == [1, 2, 2, 2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"not a tensor"),
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
        lambda path: save_file({"logprobs": torch.zeros(2)}, path),
        lambda path: save_file({"something": torch.zeros(3)}, path),
        lambda path: save_file(load_file(path), path),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"sha256":"', b'"sha256":"0', 1)),
    ],
    ids=["junk", "cut off", "too few", "another name", "no checksum", "a flipped bit", "another checksum"],
)
def test_a_bad_file_is_computed_and_written_again(model, tmp_path, spoil):
    first = logprobs(model, tmp_path)
    (kept,) = tmp_path.iterdir()
    spoil(kept)
    notes = []
    assert reference_logprobs(model, "m", ROWS, SETTINGS, ALONE, tmp_path, notes.append) == first
    assert notes == [f"reference: {kept} is damaged or has no checksum, so the log-probs are computed again"]
    assert load_file(kept)["logprobs"].tolist() == first
    assert list(tmp_path.iterdir()) == [kept]  # no half of a file is left


def test_only_the_writer_writes(model, tmp_path):
    other = World(rank=1, size=1, device=torch.device("cpu"))
    found = reference_logprobs(model, "m", ROWS, SETTINGS, other, tmp_path)
    assert found == pytest.approx([by_hand(model.model, one) for one in ROWS], abs=2e-5)
    assert not list(tmp_path.iterdir())


def test_where_they_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("WHET_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "reference"
    monkeypatch.delenv("WHET_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert cache_directory() == tmp_path / "me" / ".cache" / "whet" / "reference"


def test_a_file_under_the_name_of_another_is_not_used(model, tmp_path):
    first, turned = logprobs(model, tmp_path), logprobs(model, tmp_path, rows=ROWS[::-1])
    one, two = sorted(tmp_path.iterdir())
    one.replace(two)
    assert logprobs(model, tmp_path) == first
    assert logprobs(model, tmp_path, rows=ROWS[::-1]) == turned


def test_a_place_that_cannot_be_written_costs_time_and_not_the_run(model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    notes = []
    found = reference_logprobs(model, "m", ROWS, SETTINGS, ALONE, tmp_path / "file" / "below", notes.append)
    assert found == pytest.approx([by_hand(model.model, one) for one in ROWS], abs=2e-5)
    assert "cannot be kept" in notes[0]
