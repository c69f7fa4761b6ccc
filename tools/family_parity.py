#!/usr/bin/env python3
"""Random-config parity of `pleat probe` with Hugging Face transformers.

For every family, draws configurations from a 64-bit seed, writes each with save_pretrained (fp32, CPU, eager attention
and experts) and compares logits, loss, hidden states, the auxiliary loss and every gradient. Then checks that settings
the families' code does not know are refused by name instead of being ignored.

Needs torch, transformers and safetensors; the product does not.
    python tools/family_parity.py --count 50 --seed 0x5eed
    python tools/family_parity.py --families gpt_oss --seed 0x5eed --index 17 --keep /tmp/case

Config number i of a family is drawn from sha256("SEED:FAMILY:i"), so a failure repeats alone with --index i.
Exits 1 when anything differs, 2 when the arguments are wrong.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

FAMILIES = ["llama", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "gpt_oss"]
LOGITS_BOUND = 1e-5  # norm-wise, also for hidden states, loss and auxiliary loss
GRAD_BOUND = 1e-4    # norm-wise
GRAD_FLOOR = 1e-8    # a difference this small in norm is equality
TIE_GAP = 1e-5       # two competing router scores closer than this: other tokens are drawn
LEAST_LOSS = 1e-2    # below, the gradient is a difference of nearly equal float32 numbers in both: other tokens are drawn
ZERO_BOUND = 1e-5    # gradients that are zero on paper: rounding, as a part of the whole gradient


# --- drawing configurations ------------------------------------------------------------------------------------------

def draw_rope(r, family, max_length):
    rope = {"rope_type": r.choice(["default", "default", "linear", "llama3", "yarn", "yarn"]),
            "rope_theta": r.choice([100.0, 1234.5, 10000.0, 150000.0, 1e6])}
    if rope["rope_type"] == "linear":
        rope["factor"] = r.choice([1.0, 2.0, 3.7, 8.0])
    if rope["rope_type"] == "llama3":
        low = r.choice([1.0, 2.0])
        rope.update(factor=r.choice([2.0, 8.0, 32.0]), low_freq_factor=low, high_freq_factor=low * r.choice([2.0, 4.0]),
                    original_max_position_embeddings=r.choice([16, 48, 128]))
    if rope["rope_type"] == "yarn":
        rope.update(factor=r.choice([1.5, 4.0, 40.0]), original_max_position_embeddings=r.choice([16, 64, 128]))
        if r.random() < 0.5:
            rope.update(beta_fast=r.choice([8.0, 16.0, 32.0]), beta_slow=r.choice([0.25, 1.0, 2.0]))
        if r.random() < 0.4:
            rope["truncate"] = r.random() < 0.5
        form = r.randrange(5)
        if form == 1:
            rope.update(mscale=r.choice([0.707, 1.0]), mscale_all_dim=r.choice([0.5, 0.707, 1.0]))
        if form == 2:
            rope["mscale_all_dim"] = 1.0
        if form == 3:
            rope["attention_factor"] = r.choice([0.8, 1.0, 1.3])
        if form == 4:
            rope["mscale"] = 0.707
    return rope


def draw_heads(r, c, family, free_head_dim, multiple):
    """Heads, key/value heads, head width and hidden width. `multiple`: hidden must be a multiple of the heads."""
    heads = r.choice([1, 2, 3, 4, 5, 6, 7])
    c["num_attention_heads"] = heads
    c["num_key_value_heads"] = r.choice([1, heads, r.choice([d for d in range(1, heads + 1) if heads % d == 0])])
    width = r.choice([2, 4, 6, 8, 10, 16])
    if family == "mixtral" and c["rope_parameters"]["rope_type"] == "yarn":
        free_head_dim = "always"  # transformers cannot derive it there
    if free_head_dim and r.random() < 0.6:
        c["head_dim"] = width
        c["hidden_size"] = heads * r.choice([3, 5, 8]) if multiple else r.choice([17, 24, 31, 40])
        c["hidden_size"] = max(c["hidden_size"], 8) if not multiple else heads * -(-max(c["hidden_size"], 8) // heads)
    else:
        while heads * width < 8:
            width += 2
        c["hidden_size"] = heads * width
        if free_head_dim == "always":
            c["head_dim"] = width


def draw_experts(r, c, key):
    c[key] = r.choice([2, 3, 4, 5, 7, 8, 12])
    c["num_experts_per_tok"] = r.choice([1, 2, c[key], r.randint(1, c[key])])
    c["num_experts_per_tok"] = min(c["num_experts_per_tok"], c[key])


def draw_windows(r, c, layer_types):
    """A sliding window, per layer where the family lists its layers."""
    c["sliding_window"] = r.choice([1, 2, 3, 5, 8, 13, 64])
    if layer_types and r.random() < 0.6:
        c["layer_types"] = [r.choice(["full_attention", "sliding_attention"]) for _ in range(c["num_hidden_layers"])]


def draw_sparse(r, c):
    if r.random() < 0.4:
        c["decoder_sparse_step"] = r.choice([1, 2, 2, 3])
    if r.random() < 0.4:
        c["mlp_only_layers"] = sorted(r.sample(range(c["num_hidden_layers"]), r.randint(0, c["num_hidden_layers"])))


def draw_latent(r, c, family):
    heads = r.choice([1, 2, 3, 4, 5, 7])
    c.update(num_attention_heads=heads, num_key_value_heads=heads, hidden_size=heads * r.choice([7, 8, 11]) if heads > 1 else 12,
             q_lora_rank=r.choice([None, 5, 8, 12]), kv_lora_rank=r.choice([3, 6, 8, 16]), qk_nope_head_dim=r.choice([1, 4, 5, 8]),
             qk_rope_head_dim=r.choice([2, 4, 6, 8]), v_head_dim=r.choice([1, 3, 4, 8, 11]),
             moe_intermediate_size=r.choice([3, 8, 9, 16]), n_shared_experts=r.choice([1, 1, 2, 3]),
             first_k_dense_replace=r.choice([0, 0, 1, 1, 2, c["num_hidden_layers"] + r.choice([0, 1])]),
             routed_scaling_factor=r.choice([1.0, 0.5, 2.5, 16.0]))
    if family == "deepseek_v2":  # transformers views pairs as complex numbers, which needs even strides
        c.update(kv_lora_rank=r.choice([2, 6, 8, 16]), qk_nope_head_dim=r.choice([2, 4, 6, 8]))
    groups = r.choice([1, 2, 3, 4])
    least = 2 if family == "deepseek_v3" else 1  # V3's group score is the sum of two
    size = r.choice([n for n in (1, 2, 3, 4, 5) if n >= least])
    if groups == 1:
        size = max(size, 2)
    c["n_routed_experts"] = groups * size
    if family == "deepseek_v2":
        c["topk_method"] = r.choice(["greedy", "group_limited_greedy"])
        c["norm_topk_prob"] = r.random() < 0.5  # transformers reads it for no purpose
        if c["topk_method"] == "greedy":
            c.update(n_group=r.choice([None, 1, groups]), topk_group=r.choice([None, 1]))
            c["num_experts_per_tok"] = r.choice([1, groups * size, r.randint(1, groups * size)])
            return
    else:
        c["norm_topk_prob"] = r.random() < 0.5
        c["rope_interleave"] = r.random() < 0.5
        c["num_mtp_layers"] = r.choice([0, 1])
    c.update(n_group=groups, topk_group=r.randint(1, groups))
    reach = c["topk_group"] * size
    c["num_experts_per_tok"] = r.choice([1, reach, r.randint(1, reach)])


def draw(r, family):
    c = {"vocab_size": r.choice([11, 37, 64, 101, 131]), "num_hidden_layers": r.choice([1, 2, 2, 3, 4]),
         "intermediate_size": r.choice([5, 16, 23, 32]), "max_position_embeddings": r.choice([64, 256, 4096]),
         "rms_norm_eps": r.choice([1e-6, 1e-5, 1e-3]), "tie_word_embeddings": r.random() < 0.5,
         "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "attention_dropout": 0.0}
    if c["vocab_size"] in (37, 101):
        c["pad_token_id"] = 1  # its row has no gradient
    c["rope_parameters"] = draw_rope(r, family, c["max_position_embeddings"])
    if family.startswith("deepseek"):
        draw_latent(r, c, family)
        return c
    draw_heads(r, c, family, {"olmoe": None, "qwen2_moe": "yes", "qwen3": "always", "gpt_oss": "always"}.get(family, "yes"), family == "llama")
    if family in ("llama", "qwen3", "qwen3_moe", "olmoe", "gpt_oss"):
        c["attention_bias"] = r.random() < 0.5
    if family == "llama":
        c["mlp_bias"] = r.random() < 0.5
    if family in ("mixtral", "gpt_oss"):
        draw_experts(r, c, "num_local_experts")
    if family in ("qwen2_moe", "qwen3_moe", "olmoe"):
        draw_experts(r, c, "num_experts")
        c["norm_topk_prob"] = r.random() < 0.5
    if family in ("qwen2_moe", "qwen3_moe"):
        c["moe_intermediate_size"] = r.choice([3, 8, 9, 16])
        draw_sparse(r, c)
    if family == "qwen2_moe":
        c.update(shared_expert_intermediate_size=r.choice([3, 8, 17]), qkv_bias=r.random() < 0.6)
    if family in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"):
        c["router_aux_loss_coef"] = r.choice([0.0, 0.001, 0.02])
    if family == "gpt_oss":
        draw_windows(r, c, True)
    if family == "mixtral" and r.random() < 0.5:
        draw_windows(r, c, False)
    if family in ("qwen2_moe", "qwen3", "qwen3_moe"):
        c["use_sliding_window"] = r.random() < 0.6
        if family != "qwen3_moe":
            c["max_window_layers"] = r.randint(0, c["num_hidden_layers"])
        if c["use_sliding_window"]:
            draw_windows(r, c, family != "qwen3_moe")
    return c


# What transformers can say and the families' code does not know: each must be refused by a message that names the key.
REFUSED = {
    "llama": [({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"), ({"hidden_act": "gelu"}, "hidden_act")],
    "qwen3": [({"hidden_act": "relu"}, "hidden_act")],
    "mixtral": [({"hidden_act": "gelu"}, "hidden_act")],
    "qwen2_moe": [({"hidden_act": "gelu"}, "hidden_act")],
    "qwen3_moe": [({"hidden_act": "gelu"}, "hidden_act")],
    "olmoe": [({"clip_qkv": 0.5}, "clip_qkv")],
    "deepseek_v2": [({"attention_bias": True}, "attention_bias"), ({"mlp_bias": True}, "mlp_bias")],
    "deepseek_v3": [({"attention_bias": True}, "attention_bias")],
    "gpt_oss": [({"swiglu_limit": 5.0}, "swiglu_limit"), ({"swiglu_alpha": 1.0}, "swiglu_alpha")],
}


# --- models -----------------------------------------------------------------------------------------------------------

def build(family, settings, seed):
    config = transformers.AutoConfig.for_model(family, **json.loads(json.dumps(settings)))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    g = torch.Generator().manual_seed(seed & (2**63 - 1))
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if "norm" in name.rsplit(".", 2)[-2]:
                p.copy_(1 + 0.2 * noise)
            elif name.endswith("bias") or p.dim() == 1:
                p.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                p.copy_(noise)
            else:
                fan_in = p.shape[1] if family == "gpt_oss" and p.dim() == 3 else p.shape[-1]
                lively = 2.0 if name.endswith(("mlp.gate.weight", "mlp.router.weight")) else 1.0
                p.copy_(lively * noise / fan_in**0.5)
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(0.2 * torch.randn(b.shape, generator=g))
    return model


def write_before_version_5(folder, r):
    """Rewrites config.json as transformers 4 would have: rope_theta and rope_scaling, derived lists left out. Undone
    when transformers does not read the same config back."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        text = f.read()
    now = transformers.AutoConfig.from_pretrained(folder).to_dict()
    old = json.loads(text)
    rope = old.pop("rope_parameters")
    old["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    old["rope_scaling"] = None if kind == "default" else {r.choice(["type", "rope_type"]): kind, **rope}
    old["torch_dtype"] = old.pop("dtype", "float32")

    def reads_back(candidate):
        with open(path, "w") as f:
            json.dump(candidate, f, indent=2)
        return transformers.AutoConfig.from_pretrained(folder).to_dict() == now

    without = {k: v for k, v in old.items() if k != "layer_types"}
    if not reads_back(without) and not reads_back(old):
        with open(path, "w") as f:
            f.write(text)
        return False
    return True


def smallest_gap(scores, k):
    if k >= scores.shape[-1]:
        return float("inf")
    ordered = scores.sort(dim=-1, descending=True).values
    return (ordered[..., k - 1] - ordered[..., k]).min().item()


def router_gap(family, config, logits, bias):
    """The smallest distance between a chosen and an unchosen expert (or group)."""
    k = config.num_experts_per_tok
    scores = logits.sigmoid() + bias if family == "deepseek_v3" else logits
    grouped = family == "deepseek_v3" or (family == "deepseek_v2" and config.topk_method == "group_limited_greedy")
    if not grouped:
        return smallest_gap(scores, k)
    parts = scores.view(scores.shape[0], config.n_group, -1)
    group = parts.topk(2, dim=-1).values.sum(-1) if family == "deepseek_v3" else parts.max(-1).values
    gap = smallest_gap(group, config.topk_group)
    allowed = torch.zeros_like(group).scatter_(1, group.topk(config.topk_group, dim=-1).indices, 1)
    masked = parts.masked_fill(allowed.unsqueeze(-1) == 0, -1e30).flatten(1)
    if k < config.topk_group * parts.shape[-1]:
        gap = min(gap, smallest_gap(masked, k))
    return gap


def reference(family, model, r, seed):
    """Tokens without near ties, and everything transformers says about them."""
    seen = []
    hooks = []
    for name, module in model.named_modules():
        if name.endswith(("mlp.gate", "mlp.router")):
            hooks.append(module.register_forward_hook(
                lambda m, _, out: seen.append((out[0].detach().reshape(-1, out[0].shape[-1]), getattr(m, "e_score_correction_bias", None)))))
    g = torch.Generator().manual_seed((seed >> 1) & (2**62 - 1))
    batch, length = r.choice([1, 2, 3]), r.choice([2, 5, 9, 16, 23, 33])
    for _ in range(50):
        ids = torch.randint(0, model.config.vocab_size, (batch, length), generator=g)
        seen.clear()
        out = model(input_ids=ids, labels=ids, output_hidden_states=True, use_cache=False)
        if out.loss > LEAST_LOSS and all(router_gap(family, model.config, logits, bias) > TIE_GAP for logits, bias in seen):
            break
    else:
        raise RuntimeError("no tokens without near ties and with a loss in 50 draws")
    for h in hooks:
        h.remove()
    model.zero_grad()
    out.loss.backward()
    expected = {"logits": out.logits, "loss": out.loss.reshape(1)}
    for i, h in enumerate(out.hidden_states):
        expected[f"hidden.{i}"] = h
    balance = getattr(sys.modules[type(model).__module__], "load_balancing_loss_func", None)
    if balance and seen and getattr(model.config, "router_aux_loss_coef", 0):
        expected["aux_loss_hf"] = balance(tuple(s for s, _ in seen), seen[0][0].shape[-1], model.config.num_experts_per_tok).reshape(1)
    for name, p in model.named_parameters():
        expected["grad." + name] = torch.zeros_like(p) if p.grad is None else p.grad
    return ids, {k: v.detach().double() for k, v in expected.items()}


def zero_on_paper(family, config, name, length):
    """Gradients that are rounding and nothing else: a weight normalised to one, a softmax over one key (only the first
    of two tokens predicts something)."""
    if name.endswith(("mlp.gate.weight", "mlp.router.weight", "mlp.router.bias")) and config.num_experts_per_tok == 1:
        return family in ("mixtral", "gpt_oss") or (family != "deepseek_v2" and bool(config.norm_topk_prob))
    scores = any(part in name for part in (".q_proj", ".k_proj", ".q_norm", ".k_norm", ".q_a_", ".q_b_"))
    if not scores or family == "gpt_oss":  # a sink competes with a single key
        return False
    layers = getattr(config, "layer_types", None)
    windowed = layers is None or layers[int(name.split(".layers.")[1].split(".")[0])] == "sliding_attention"
    return length == 2 or (getattr(config, "sliding_window", None) == 1 and windowed)


# --- comparison -------------------------------------------------------------------------------------------------------

def probe(pleat, folder, ids):
    tokens, out = os.path.join(folder, "tokens.st"), os.path.join(folder, "probe.st")
    save_file({"input_ids": ids.contiguous()}, tokens)
    # The tokens must not be taken for a part of the model.
    model = os.path.join(folder, "model")
    done = subprocess.run([pleat, "probe", model, "--tokens", tokens, "--out", out, "--grads", "--dtype", "f32", "--threads", "1"],
                          capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        return None, (done.stderr + done.stdout).strip()
    with safe_open(out, "pt") as f:
        return {name: f.get_tensor(name).double() for name in f.keys()}, ""


def compare(family, config, expected, got):
    """Faults as text, worst logits error, worst gradient error."""
    faults, worst_logits, worst_grad = [], 0.0, 0.0
    missing, extra = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    if missing or extra:
        faults.append(f"missing {missing[:4]} extra {extra[:4]}")
    whole = sum(float(v.norm())**2 for k, v in expected.items() if k.startswith("grad."))**0.5
    for name in sorted(set(expected) & set(got)):
        want, have = expected[name], got[name]
        if want.shape != have.shape:
            faults.append(f"{name} is {tuple(have.shape)}, expected {tuple(want.shape)}")
            continue
        difference = float((want - have).norm())
        error = difference / max(float(want.norm()), 1e-30)
        if difference != difference:
            faults.append(f"{name} is not a number")
        elif not name.startswith("grad."):
            if name == "logits":
                worst_logits = max(worst_logits, error)
            if error > LOGITS_BOUND:
                faults.append(f"{name} {error:.1e}")
        elif zero_on_paper(family, config, name, expected["logits"].shape[1]):
            if max(float(want.norm()), float(have.norm())) > ZERO_BOUND * whole:
                faults.append(f"{name} should vanish: {float(want.norm()):.1e} and {float(have.norm()):.1e} of {whole:.1e}")
        elif difference > GRAD_FLOOR:
            worst_grad = max(worst_grad, error)
            if error > GRAD_BOUND:
                faults.append(f"{name} {error:.1e} (norm {float(want.norm()):.1e} of {whole:.1e})")
    return faults, worst_logits, worst_grad


def seed_of(seed, family, index):
    return int.from_bytes(hashlib.sha256(f"{seed:#x}:{family}:{index}".encode()).digest()[:8], "little")


def run_one(family, seed, index, pleat, folder):
    """Returns (faults, worst logits, worst gradient, settings)."""
    own = seed_of(seed, family, index)
    r = random.Random(own)
    settings = draw(r, family)
    model = build(family, settings, own)
    path = os.path.join(folder, "model")
    model.save_pretrained(path)
    settings["written as"] = "version 4" if r.random() < 0.3 and write_before_version_5(path, r) else "version 5"
    ids, expected = reference(family, model, r, own)
    got, error = probe(pleat, folder, ids)
    if got is None:
        return ["pleat says: " + error.replace("\n", " | ")[:400]], 0.0, 0.0, settings
    return (*compare(family, model.config, expected, got), settings)


def refusals(family, seed, pleat, folder):
    """Faults of the settings that must be refused, and how many were refused."""
    faults, refused = [], 0
    for change, word in REFUSED[family]:
        own = seed_of(seed, family, 0)
        settings = {**draw(random.Random(own), family), **change}
        model = build(family, settings, own)
        shutil.rmtree(os.path.join(folder, "model"), ignore_errors=True)
        model.save_pretrained(os.path.join(folder, "model"))
        got, error = probe(pleat, folder, torch.tensor([[1, 2, 3]]))
        if got is not None:
            faults.append(f"{change} was not refused")
        elif word not in error:
            faults.append(f"{change} was refused without its name: {error[:200]}")
        else:
            refused += 1
    return faults, refused


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--families", default=",".join(FAMILIES), help="comma-separated")
    arguments.add_argument("--count", type=int, default=50, help="configurations per family")
    arguments.add_argument("--seed", type=lambda s: int(s, 0), default=None, help="64-bit; a fresh one when left out")
    arguments.add_argument("--index", type=int, default=None, help="this configuration only")
    arguments.add_argument("--pleat", default=os.path.join(here, "..", "build", "cpu", "pleat"))
    arguments.add_argument("--keep", default=None, help="folder for failing cases (all cases with --index)")
    a = arguments.parse_args()
    families = a.families.split(",")
    if unknown := [f for f in families if f not in FAMILIES]:
        arguments.error(f"unknown families {unknown}; known are {FAMILIES}")
    if not os.access(a.pleat, os.X_OK):
        arguments.error(f"no program at {a.pleat}; build it or give --pleat")
    seed = int.from_bytes(os.urandom(8), "little") if a.seed is None else a.seed
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(f"seed {seed:#018x}, {a.count} configurations per family, transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    rows, failed = [], False
    for family in families:
        passed, num_failed, logits, grad, start = 0, 0, 0.0, 0.0, time.time()
        for index in [a.index] if a.index is not None else range(a.count):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    faults, e_logits, e_grad, settings = run_one(family, seed, index, a.pleat, folder)
                except Exception as e:  # a config transformers itself cannot run is a fault of the draw
                    faults, e_logits, e_grad, settings = [f"{type(e).__name__}: {e}"], 0.0, 0.0, draw(random.Random(seed_of(seed, family, index)), family)
                if a.keep and (faults or a.index is not None):
                    shutil.copytree(folder, os.path.join(a.keep, f"{family}-{index}"), dirs_exist_ok=True)
            logits, grad = max(logits, e_logits), max(grad, e_grad)
            if faults:
                num_failed += 1
                print(f"FAIL {family} {index} seed {seed_of(seed, family, index):#018x}: {'; '.join(faults[:4])}"
                      f"{f' and {len(faults) - 4} more' if len(faults) > 4 else ''} config {json.dumps(settings)}", flush=True)
            else:
                passed += 1
        refused = 0
        if a.index is None:
            with tempfile.TemporaryDirectory() as folder:
                faults, refused = refusals(family, seed, a.pleat, folder)
            for fault in faults:
                num_failed += 1
                print(f"FAIL {family} refusals: {fault}", flush=True)
        failed |= num_failed > 0
        rows.append((family, passed, num_failed, f"{refused} of {len(REFUSED[family])}", f"{logits:.1e}", f"{grad:.1e}", f"{time.time() - start:.0f} s"))
        print(f"# {family}: {passed} passed, {num_failed} failed, {rows[-1][-1]}", flush=True)
    print("\n| family | passed | failed | refused as they must be | worst logits error | worst gradient error | time |\n|---|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(str(x) for x in row) + " |")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
