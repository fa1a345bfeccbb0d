"""Makes a tiny random-weight GGUF of a recurrent architecture, which can't take back tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from tiny_gguf import N_CTX_TRAIN, add_vocabulary, make_vocabulary

N_EMBD, N_LAYERS = 64, 2
N_INNER, N_STATE, N_CONV, DT_RANK = 2 * N_EMBD, 16, 4, 4


def write_tiny_mamba(path: Path) -> None:
    """Write the model; it is the same every time."""
    vocabulary = make_vocabulary()
    writer = GGUFWriter(path, "mamba")
    writer.add_name("tiny random mamba")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(N_CONV)
    writer.add_ssm_inner_size(N_INNER)
    writer.add_ssm_state_size(N_STATE)
    writer.add_ssm_time_step_rank(DT_RANK)
    add_vocabulary(writer, vocabulary)
    for name, tensor in _tensors(len(vocabulary.tokens)).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(n_vocab: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)

    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> np.ndarray:
        weights: np.ndarray = random.standard_normal((n_out, n_in)) * (gain / np.sqrt(n_in))
        return weights.astype(np.float32)

    tensors = {
        "token_embd.weight": matrix(n_vocab, N_EMBD, gain=np.sqrt(N_EMBD)),
        "output_norm.weight": np.ones(N_EMBD, dtype=np.float32),
        "output.weight": matrix(n_vocab, N_EMBD, gain=8.0),
    }
    tensors["output.weight"][480:] = 0  # it writes no control token
    decay = -np.tile(np.arange(1, N_STATE + 1, dtype=np.float32), (N_INNER, 1))
    for layer in range(N_LAYERS):
        block = {
            "attn_norm.weight": np.ones(N_EMBD, dtype=np.float32),
            "ssm_in.weight": matrix(2 * N_INNER, N_EMBD),
            "ssm_conv1d.weight": matrix(N_INNER, N_CONV),
            "ssm_conv1d.bias": np.zeros(N_INNER, dtype=np.float32),
            "ssm_x.weight": matrix(DT_RANK + 2 * N_STATE, N_INNER),
            "ssm_dt.weight": matrix(N_INNER, DT_RANK),
            "ssm_dt.bias": np.zeros(N_INNER, dtype=np.float32),
            "ssm_a": 0.1 * decay,
            "ssm_d": np.ones(N_INNER, dtype=np.float32),
            "ssm_out.weight": matrix(N_EMBD, N_INNER, gain=2.0),
        }
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in block.items()}
    return tensors
