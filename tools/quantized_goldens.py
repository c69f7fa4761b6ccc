#!/usr/bin/env python3
"""Small models with quantized weights as they are published, and what Hugging Face transformers makes of them.

Writes three folders below tests/golden/quantized: an FP8 qwen3_moe whose last blocks are cut off, an FP8 deepseek_v3,
an MXFP4 gpt_oss. In each:
  config.json, model.safetensors   the model: random codes and scales, bfloat16 for what such models keep plain
  dequantized.json                 SHA-256 of every dequantized tensor as little-endian float32, by name on disk
  golden.safetensors               input_ids [2, 24] and the float32 logits of the dequantized model

The numbers are transformers' own: the ops its loader dequantizes with (Fp8Dequantize, Mxfp4Dequantize), and a model it
loaded from the folder itself, on the CPU with eager attention. Only where blocks are cut off its FP8 loader cannot say
what they are: it takes rows / (rows of scales) for the height of a block, which is 72 where two blocks of 128 cover
144 rows. There the numbers come from the function it uses in its backward pass, which knows the size of a block, and
the logits from a folder of these numbers.

Needs torch, transformers, accelerate and safetensors; the product does not.
    python tools/quantized_goldens.py [--out tests/golden/quantized]
"""
import argparse
import hashlib
import json
import os
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers.integrations import finegrained_fp8, mxfp4  # noqa: E402

BLOCK = 128

COMMON = dict(vocab_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=512, num_experts_per_tok=2,
              tie_word_embeddings=False, use_cache=False, bos_token_id=None, eos_token_id=None, pad_token_id=None)
MODELS = {
    "qwen3_moe_fp8": transformers.Qwen3MoeConfig(
        **COMMON, hidden_size=144, num_hidden_layers=1, num_key_value_heads=2, num_experts=3, moe_intermediate_size=136,
        intermediate_size=136, norm_topk_prob=True),
    "deepseek_v3_fp8": transformers.DeepseekV3Config(
        **{**COMMON, "head_dim": 8}, hidden_size=256, num_hidden_layers=2, num_key_value_heads=4, n_routed_experts=4,
        n_shared_experts=1, moe_intermediate_size=16, intermediate_size=64, first_k_dense_replace=1, n_group=2,
        topk_group=1, q_lora_rank=32, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16),
    "gpt_oss_mxfp4": transformers.GptOssConfig(
        **COMMON, hidden_size=64, num_hidden_layers=2, num_key_value_heads=2, num_local_experts=3, intermediate_size=96,
        sliding_window=8),
}
FP8_CONFIG = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
# As the published models name them.
PLAIN = {
    "qwen3_moe_fp8": ["lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate",
                      "model.layers.0.post_attention_layernorm"],
    "deepseek_v3_fp8": None,
    "gpt_oss_mxfp4": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
}


def digest(tensor):
    return hashlib.sha256(tensor.float().contiguous().numpy().tobytes()).hexdigest()


def plain_tensors(config):
    """What save_pretrained writes of a fresh model, with spread enough that no two router scores tie."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() < 2 else parameter.shape[-1]**-0.5) +
                            (1 if parameter.dim() < 2 else 0))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        with open(os.path.join(folder, "config.json")) as f:
            return tensors, json.load(f)


def fp8(weight):
    """Codes and float32 scales of a matrix: the largest number of a block becomes 448."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scales[i, j] = weight[block].abs().max() / 448
            codes[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
    return codes, scales


def quantize_fp8(tensors):
    out, dequantized = {}, {}
    for name, tensor in tensors.items():
        if ".layers." in name and name.endswith("_proj.weight") or "_proj_with_mqa." in name:
            codes, scales = fp8(tensor)
            out[name], out[name + "_scale_inv"] = codes, scales
            dequantized[name] = finegrained_fp8._dequantize_fp8_weight(codes, scales, [BLOCK, BLOCK], torch.float32)
            if all(n % BLOCK == 0 or n < BLOCK for n in tensor.shape):
                op = finegrained_fp8.Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
                assert torch.equal(op, dequantized[name]), name
        elif "e_score_correction_bias" in name:
            out[name] = tensor
        else:
            out[name] = tensor.to(torch.bfloat16)
    return out, dequantized


def quantize_mxfp4(tensors):
    out, dequantized = {}, {}
    generator = torch.Generator().manual_seed(5)
    for name, tensor in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = tensor.shape
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
            scales = torch.randint(118, 125, blocks.shape[:-1], dtype=torch.uint8, generator=generator)
            out[name + "_blocks"], out[name + "_scales"] = blocks, scales
            dequantized[name] = mxfp4.convert_moe_packed_tensors(blocks, scales)
            assert dequantized[name].shape == tensor.shape
        else:
            out[name] = tensor.to(torch.bfloat16)
    return out, dequantized


def logits_of(folder, ids, **how):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                              experts_implementation="eager", **how)
    model.float()  # a quantized folder's plain weights stay bfloat16
    with torch.no_grad():
        return model(ids).logits, model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "../tests/golden/quantized"))
    root = parser.parse_args().out
    for name, config in MODELS.items():
        folder = os.path.join(root, name)
        os.makedirs(folder, exist_ok=True)
        tensors, described = plain_tensors(config)
        is_fp8 = name.endswith("_fp8")
        stored, dequantized = quantize_fp8(tensors) if is_fp8 else quantize_mxfp4(tensors)
        described["dtype"] = "bfloat16"
        plain = dict(described)
        described["quantization_config"] = dict(FP8_CONFIG) if is_fp8 else {"quant_method": "mxfp4"}
        if PLAIN[name]:
            described["quantization_config"]["modules_to_not_convert"] = PLAIN[name]
        save_file(stored, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write(json.dumps(described, indent=2, sort_keys=True) + "\n")
        with open(os.path.join(folder, "dequantized.json"), "w") as f:
            f.write(json.dumps({n: digest(t) for n, t in dequantized.items()}, indent=1, sort_keys=True) + "\n")

        ids = torch.randint(0, config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(7))
        with tempfile.TemporaryDirectory() as by_hand:
            numbers = {n: t.float() for n, t in stored.items() if n in tensors and n not in dequantized}
            numbers |= {n: t.float().contiguous() for n, t in dequantized.items()}
            assert numbers.keys() == tensors.keys()
            save_file(numbers, os.path.join(by_hand, "model.safetensors"), metadata={"format": "pt"})
            with open(os.path.join(by_hand, "config.json"), "w") as f:
                json.dump(plain, f)
            logits, plain_model = logits_of(by_hand, ids)
        if name != "qwen3_moe_fp8":
            how = transformers.FineGrainedFP8Config if is_fp8 else transformers.Mxfp4Config
            own, loaded = logits_of(folder, ids, quantization_config=how(dequantize=True))
            for (n, a), (m, b) in zip(plain_model.named_parameters(), loaded.named_parameters()):
                assert n == m and torch.equal(a.float(), b.float()), n
            assert torch.equal(own, logits)
        save_file({"input_ids": ids, "logits": logits.contiguous()}, os.path.join(folder, "golden.safetensors"))
        print(f"{name}: {len(dequantized)} of {len(tensors)} tensors quantized, logits up to {logits.abs().max():.3g}")


if __name__ == "__main__":
    main()
