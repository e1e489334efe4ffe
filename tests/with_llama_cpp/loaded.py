"""A GGUF file in llama.cpp, in fp32 throughout: its ids, its logits and its greedy text."""

import numpy as np

FP32 = 0  # of ggml's types, for the KV cache


class Loaded:
    """A model that llama.cpp computes on a CPU."""

    def __init__(self, path, *, context=512):
        import llama_cpp

        self._library = llama_cpp
        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=context,
            n_threads=1,
            logits_all=True,
            type_k=FP32,
            type_v=FP32,
            flash_attn=False,
            verbose=False,
        )
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._llama.model)

    def encode(self, text, *, special=False, bos=False):
        """The ids of a text; with `special` control strings become control tokens."""
        return self._llama.tokenize(text.encode(), add_bos=bos, special=special)

    def logits(self, tokens):
        """(T, V): after every token."""
        self._llama.reset()
        self._llama.eval(list(tokens))
        return np.array(self._llama.scores[: len(tokens)])

    def greedy(self, tokens, count):
        """The most likely continuation, up to an end of generation."""
        self._llama.reset()
        self._llama.eval(list(tokens))
        found = []
        while len(found) < count:
            found.append(int(np.argmax(self._llama.scores[self._llama.n_tokens - 1])))
            if self.is_end(found[-1]):
                break
            self._llama.eval(found[-1:])
        return found

    def is_end(self, token):
        """Whether generation ends at a token."""
        return bool(self._library.llama_vocab_is_eog(self._vocabulary, token))

    def adds_bos(self):
        """Whether a text begins with the beginning-of-sequence token."""
        return bool(self._library.llama_vocab_get_add_bos(self._vocabulary))

    def template(self):
        """The chat template of the file."""
        return self._llama.metadata.get("tokenizer.chat_template")
