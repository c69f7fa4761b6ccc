#!/usr/bin/env python3
"""Models through Pleat and back, judged by Hugging Face transformers.

For every model folder:
  1. import, export --check: the tensors are the source's bit for bit; transformers loads the result without a missing,
     unexpected or mismatched key and computes the same logits, bit for bit, as from the source; the same again for an
     export cut into many shards.
  2. import, 5 training steps, export --check: transformers' logits of the result equal those of `pleat probe` to 1e-5
     norm-wise; every tensor differs from the source's.

Needs torch, transformers and safetensors; the product does not.
    python tools/roundtrip_parity.py                       # the folders of tests/golden
    python tools/roundtrip_parity.py my-model other-model  # own ones, small enough to train here

Exits 1 when anything differs.
"""
import argparse
import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

LOGITS_BOUND = 1e-5  # norm-wise
STEPS = 5


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr + done.stdout).strip()}")
    return done.stdout


def tensors(folder):
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        with safe_open(path, "pt") as f:
            for name in f.keys():
                if name in out:
                    raise RuntimeError(f"{folder}: {name} is stored twice")
                out[name] = f.get_tensor(name)
    return out


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def logits(folder, ids):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(what):
            raise RuntimeError(f"transformers on {folder}: {what} {sorted(map(str, info[what]))[:4]}")
    model.eval()
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def write_dataset(prefix, vocab_size):
    """One document of 2000 random tokens as .bin/.idx (docs/formats.md)."""
    tokens = torch.randint(0, vocab_size, (2000,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    with open(prefix + ".bin", "wb") as f:
        f.write(tokens.numpy().tobytes())
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + struct.pack("<iqqq", len(tokens), 0, 0, 1))


def check(pleat, source, folder):
    """Figures of one model; throws what is wrong."""
    at = lambda name: os.path.join(folder, name)
    vocab_size = json.load(open(os.path.join(source, "config.json")))["vocab_size"]
    ids = torch.randint(0, vocab_size, (2, 29), generator=torch.Generator().manual_seed(2))
    save_file({"input_ids": ids}, at("ids.safetensors"))
    before, expected = tensors(source), logits(source, ids)

    run(pleat, "import", source, "--out", at("run"))
    shard = max(t.numel() * t.element_size() for t in before.values()) + 4096
    run(pleat, "export", at("run"), "--out", at("whole"), "--check")
    run(pleat, "export", at("run"), "--out", at("shards"), "--check", "--max-shard-bytes", str(shard))
    num_shards = len(glob.glob(at("shards/model*.safetensors")))
    for name in ("whole", "shards"):
        after = tensors(at(name))
        if before.keys() != after.keys():
            raise RuntimeError(f"{name}: other tensors: {sorted(before.keys() ^ after.keys())[:4]}")
        changed = [key for key in before if not same_bits(before[key], after[key])]
        if changed:
            raise RuntimeError(f"{name}: {len(changed)} tensors changed, {changed[:4]}")
        if not torch.equal(logits(at(name), ids), expected):
            raise RuntimeError(f"{name}: transformers computes other logits than from the source")

    write_dataset(at("tokens"), vocab_size)
    run(pleat, "train", at("run/config.toml"), "--set", f"data.train={at('tokens')}", "--set", f"train.steps={STEPS}",
        "--set", "train.seq_len=32", "--set", "train.num_microbatches=2", "--set", "train.micro_batch=2", "--set", "optimizer.lr=0.01",
        "--set", "optimizer.warmup_steps=0", "--set", "device.threads=1")
    said = run(pleat, "export", at("run"), "--out", at("trained"), "--check")
    if f"of step {STEPS} " not in said:
        raise RuntimeError(f"the export is not of step {STEPS}: {said}")
    after = tensors(at("trained"))
    unchanged = [key for key in before if same_bits(before[key], after[key])]
    if before.keys() != after.keys() or unchanged:
        raise RuntimeError(f"trained: {len(unchanged)} tensors as before, {unchanged[:4]}")
    run(pleat, "probe", at("trained"), "--tokens", at("ids.safetensors"), "--out", at("probe.safetensors"), "--threads", "1")
    with safe_open(at("probe.safetensors"), "pt") as f:
        ours = f.get_tensor("logits").double()
    theirs = logits(at("trained"), ids).double()
    error = float((ours - theirs).norm() / theirs.norm())
    moved = float((theirs - expected.double()).norm() / expected.double().norm())
    if not error <= LOGITS_BOUND:
        raise RuntimeError(f"trained: logits differ by {error:.1e}, allowed are {LOGITS_BOUND:.0e}")
    if not moved > 100 * LOGITS_BOUND:
        raise RuntimeError(f"trained: the logits hardly moved, {moved:.1e}")
    return len(before), num_shards, error, float((ours - theirs).abs().max()), moved


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="model folders; none: those of tests/golden")
    parser.add_argument("--pleat", default=os.path.join(root, "build/cpu/pleat"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = arguments.models or sorted(os.path.dirname(p) for p in glob.glob(os.path.join(root, "tests/golden/*/config.json")))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    print(f"{'model':14}{'tensors':>8}{'shards':>8}  untouched   after {STEPS} steps: error of logits, largest difference, moved by")
    failed = 0
    for source in models:
        name = os.path.basename(os.path.normpath(source))
        with tempfile.TemporaryDirectory(prefix="pleat-roundtrip-") as folder:
            try:
                num_tensors, num_shards, error, largest, moved = check(arguments.pleat, source, folder)
                print(f"{name:14}{num_tensors:8}{num_shards:8}  identical   {error:.1e}  {largest:.1e}  {moved:.1e}", flush=True)
            except RuntimeError as e:
                failed += 1
                print(f"{name:14} FAILED: {e}", flush=True)
    print("all equal" if not failed else f"{failed} of {len(models)} failed")
    return 1 if failed or not models else 0


if __name__ == "__main__":
    sys.exit(main())
