#!/usr/bin/env python3
"""Writes a Hugging Face model folder of random bfloat16 weights, as fast as the disk takes it, or compares two.

    tools/make_model_folder.py FOLDER --layers 12 --gigabytes 16
    tools/make_model_folder.py --compare FOLDER OTHER

The model has the shape of qwen3_moe. Width and experts stay the same whatever the depth; --gigabytes asks for more
or fewer experts. Weights lie in shards of --shard-gigabytes with an index, as save_pretrained writes them. --compare
looks at every tensor's type, shape and bytes, wherever it lies in either folder.

Needs nothing but Python.
"""
import argparse
import json
import os
import struct
import sys
from pathlib import Path

CHUNK = 32 << 20


def tensors(a):
    """Names and shapes in the order of the layers."""
    h, f = a.hidden, a.expert
    yield "model.embed_tokens.weight", (a.vocab, h)
    for i in range(a.layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (h,)
        yield at + "post_attention_layernorm.weight", (h,)
        yield at + "self_attn.q_proj.weight", (a.heads * 128, h)
        yield at + "self_attn.k_proj.weight", (a.kv_heads * 128, h)
        yield at + "self_attn.v_proj.weight", (a.kv_heads * 128, h)
        yield at + "self_attn.o_proj.weight", (h, a.heads * 128)
        yield at + "self_attn.q_norm.weight", (128,)
        yield at + "self_attn.k_norm.weight", (128,)
        yield at + "mlp.gate.weight", (a.experts, h)
        for e in range(a.experts):
            yield at + f"mlp.experts.{e}.gate_proj.weight", (f, h)
            yield at + f"mlp.experts.{e}.up_proj.weight", (f, h)
            yield at + f"mlp.experts.{e}.down_proj.weight", (h, f)
    yield "model.norm.weight", (h,)
    yield "lm_head.weight", (a.vocab, h)


def size(shape):
    n = 2
    for d in shape:
        n *= d
    return n


def config(a):
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": 1, "decoder_sparse_step": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": a.hidden, "initializer_range": 0.02,
        "intermediate_size": 3 * a.hidden, "max_position_embeddings": 4096, "mlp_only_layers": [],
        "moe_intermediate_size": a.expert, "norm_topk_prob": True, "num_attention_heads": a.heads,
        "num_experts": a.experts, "num_experts_per_tok": min(8, a.experts), "num_hidden_layers": a.layers,
        "num_key_value_heads": a.kv_heads, "output_router_logits": False, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False,
        "vocab_size": a.vocab}


def noise():
    """Small finite bfloat16 numbers: sign and exponent of 2^-9 to 2^-3, everything else random."""
    raw = bytearray(os.urandom(CHUNK + (1 << 20)))
    table = bytes((0x80 if b & 0x80 else 0) | 0x3B + (b & 0x7F) % 3 for b in range(256))
    raw[1::2] = raw[1::2].translate(table)
    return memoryview(bytes(raw))


def write(a):
    folder = Path(a.folder)
    folder.mkdir(parents=True)
    shards, used = [[]], 0
    limit = int(a.shard_gigabytes * 1e9)
    for name, shape in tensors(a):
        if used and used + size(shape) > limit:
            shards.append([])
            used = 0
        shards[-1].append((name, shape))
        used += size(shape)
    source, turn, where, total = noise(), 0, {}, 0
    for i, shard in enumerate(shards):
        file = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, shape in sorted(shard):
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size(shape)]}
            at += size(shape)
            where[name] = file
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name, shape in sorted(shard):
                left = size(shape)
                while left:
                    turn = (turn + 7919) % (1 << 19)
                    count = min(left, CHUNK)
                    out.write(source[2 * turn:2 * turn + count])
                    left -= count
            out.flush()
            os.fsync(out.fileno())
        total += at
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(config(a), indent=2) + "\n")
    print(f"{folder}: {a.layers} layers of {a.experts} experts, {len(where)} tensors, {total} bytes, "
          f"{len(shards)} files")


def read_table(folder):
    """Name -> file, type, shape, first byte, end."""
    out = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with open(file, "rb") as f:
            length = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(length))
        header.pop("__metadata__", None)
        for name, t in header.items():
            begin, end = t["data_offsets"]
            out[name] = (file, t["dtype"], t["shape"], 8 + length + begin, 8 + length + end)
    return out


def compare(one, other):
    a, b = read_table(one), read_table(other)
    if a.keys() != b.keys():
        sys.exit(f"different names: {sorted(a.keys() ^ b.keys())[:5]}")
    total = 0
    for name in a:
        if a[name][1:3] != b[name][1:3]:
            sys.exit(f"{name}: {a[name][1:3]} and {b[name][1:3]}")
        with open(a[name][0], "rb") as x, open(b[name][0], "rb") as y:
            x.seek(a[name][3])
            y.seek(b[name][3])
            left = a[name][4] - a[name][3]
            while left:
                count = min(left, CHUNK)
                if x.read(count) != y.read(count):
                    sys.exit(f"{name}: different bytes")
                left -= count
                total += count
    print(f"{len(a)} tensors of {total} bytes: equal bit for bit")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("other", nargs="?")
    p.add_argument("--compare", action="store_true")
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--hidden", type=int, default=2048)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--kv-heads", type=int, default=4)
    p.add_argument("--experts", type=int, default=128)
    p.add_argument("--expert", type=int, default=768, help="width of an expert")
    p.add_argument("--vocab", type=int, default=32768)
    p.add_argument("--gigabytes", type=float, help="as many experts as come next to this size")
    p.add_argument("--shard-gigabytes", type=float, default=5)
    a = p.parse_args()
    if a.compare:
        return compare(a.folder, a.other)
    if a.gigabytes:
        a.experts = 0
        fixed = sum(size(shape) for _, shape in tensors(a))
        each = a.layers * size((3 * a.expert, a.hidden))
        a.experts = max(1, round((a.gigabytes * 1e9 - fixed) / each))
    write(a)


if __name__ == "__main__":
    main()
