"""Makes a tiny random-weight GGUF of the qwen2 architecture, so that tests run the real libraries.

The vocabulary is byte-level BPE like the real one: every byte, then merges learnt from a small
corpus (words, indentation, pieces that end inside a character), then Qwen's control tokens. The
weights are seeded noise, scaled so that greedy text depends on the whole prompt and varies.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

N_EMBD, N_HEADS, N_KV_HEADS, N_FF, N_LAYERS = 128, 2, 1, 192, 2
N_CTX_TRAIN = 8192
N_MERGES = 320

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)

CORPUS = (
    "def total(self, items):\n"
    "    for item in items:\n"
    "        if item is not None:\n"
    "            self.total += item.price\n"
    "                return self.total\n"
    "    return sum(self.prices)\n"
    "class Printer:\n"
    "    def __init__(self, name: str) -> None:\n"
    "        self.name = name\n"
    "        print(self.name, self.total)\n"
    "    async def returned(self):\n"
    "        return await self.printed()\n"
    "import numpy as np\nfrom pathlib import Path\nassert value == expected, (value, expected)\n"
    "äöüß Größe für über schön naïve café señor 中丸丹主 丬中 中丽 日本語 日曜 東京 "
    "Привет привет мир 😀😁😂🙂🙃 🚀🚁 ≤≥≠ “quoted” — … ½¼\n"
)
"""What the merges are learnt from. The CJK characters share their first two bytes, the faces their
first three, so that some tokens end inside a character."""


@dataclass(frozen=True, slots=True)
class TinyVocabulary:
    """The tokens as the file lists them: spelled in GPT-2's printable alphabet."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]


def printable_bytes() -> list[str]:
    """Return GPT-2's printable character for each byte value."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    table = {byte: chr(byte) for byte in plain}
    table |= {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


def make_vocabulary(
    *, control_type: TokenType = TokenType.CONTROL, extra_control: tuple[str, ...] = ()
) -> TinyVocabulary:
    """Learn the merges and add the control tokens, with the type that the file gives them."""
    control = (*CONTROL, *extra_control)
    alphabet = printable_bytes()
    # Qwen's pre-tokeniser, near enough: merges that it would never reach only waste a token.
    chunks = re.findall(r"[^\S\n]*\n|\s+(?=\s\S)| ?[^\W\d_]+| ?[^\w\s]+|\s+|.", CORPUS)
    words = Counter(tuple(alphabet[byte] for byte in chunk.encode()) for chunk in chunks)
    merges: list[tuple[str, str]] = []
    while len(merges) < N_MERGES:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): count for word, count in words.items()})
    texts = list(dict.fromkeys([*alphabet, *(a + b for a, b in merges)]))
    return TinyVocabulary(
        tokens=(*texts, *control),
        types=(*[TokenType.NORMAL] * len(texts), *[control_type] * len(control)),
        merges=tuple(f"{a} {b}" for a, b in merges),
    )


def write_tiny_gguf(
    path: Path,
    *,
    control_type: TokenType = TokenType.CONTROL,
    control_gain: float = 0.0,
    extra_control: tuple[str, ...] = (),
    seed: int = 7,
) -> None:
    """Write the model; the same arguments give the same bytes.

    Args:
        path: Where to.
        control_type: What the file calls its control tokens.
        control_gain: How much the model likes to write control tokens: 0 never, 1 as any other.
        extra_control: More control tokens, behind Qwen's.
        seed: Of the weights.
    """
    vocabulary = make_vocabulary(control_type=control_type, extra_control=extra_control)
    writer = GGUFWriter(path, "qwen2")
    writer.add_name("tiny random qwen2")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    add_vocabulary(writer, vocabulary)
    tensors = _tensors(len(vocabulary.tokens), seed)
    tensors["output.weight"][-len(CONTROL + extra_control) :] *= control_gain
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: GGUFWriter, vocabulary: TinyVocabulary) -> None:
    """Write what the tokeniser is made of."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.types))
    writer.add_token_merges(list(vocabulary.merges))
    end = vocabulary.tokens.index("<|endoftext|>")
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end)
    writer.add_add_bos_token(False)


def _tensors(n_vocab: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> np.ndarray:
        weights: np.ndarray = random.standard_normal((n_out, n_in)) * (gain / np.sqrt(n_in))
        return weights.astype(np.float16)

    head = N_EMBD // N_HEADS
    tensors = {
        "token_embd.weight": matrix(n_vocab, N_EMBD, gain=np.sqrt(N_EMBD)),
        "output_norm.weight": np.ones(N_EMBD, dtype=np.float32),
        "output.weight": matrix(n_vocab, N_EMBD, gain=8.0),
    }
    for layer in range(N_LAYERS):
        kv = N_KV_HEADS * head
        block = {
            "attn_norm.weight": np.ones(N_EMBD, dtype=np.float32),
            "attn_q.weight": matrix(N_EMBD, N_EMBD, gain=1.5),
            "attn_q.bias": np.zeros(N_EMBD, dtype=np.float32),
            "attn_k.weight": matrix(kv, N_EMBD, gain=1.5),
            "attn_k.bias": np.zeros(kv, dtype=np.float32),
            "attn_v.weight": matrix(kv, N_EMBD, gain=3.0),
            "attn_v.bias": np.zeros(kv, dtype=np.float32),
            "attn_output.weight": matrix(N_EMBD, N_EMBD, gain=3.0),
            "ffn_norm.weight": np.ones(N_EMBD, dtype=np.float32),
            "ffn_gate.weight": matrix(N_FF, N_EMBD),
            "ffn_up.weight": matrix(N_FF, N_EMBD),
            "ffn_down.weight": matrix(N_EMBD, N_FF, gain=2.0),
        }
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in block.items()}
    return tensors


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)
