"""The shape of the model that `model.new` describes. Imports no torch: `whet plan` asks too."""

from whet.config import NewModel
from whet.errors import UserError
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.model_shape import new_shape


def new_decoder_config(new: NewModel, vocab_size: int, *, causal: bool = True) -> DecoderConfig:
    """The shape of a new model."""
    shape = new.model_dump(include={"family", "layers", "heads", "kv_heads", "width", "mlp_width", "context"})
    rows = embedding_rows(new, vocab_size)
    if not causal and rows != vocab_size:
        raise UserError("model.new.vocab_multiple adds ids after the mask token, which must be the last: leave it out")
    try:
        return new_shape(**shape, latent=new.latent.model_dump(), vocab_size=rows, causal=causal)
    except UserError as error:
        raise UserError(f"model.new: {error}") from error


def embedding_rows(new: NewModel, vocab_size: int) -> int:
    """The vocabulary, rounded up to `model.new.vocab_multiple`."""
    return -(-vocab_size // new.vocab_multiple) * new.vocab_multiple
