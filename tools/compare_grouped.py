#!/usr/bin/env python3
"""Grouped products of Pleat and of PyTorch (torch._grouped_mm), in turns on one GPU.

For every matrix of four models, with even, random and skewed rows per expert, forward, input gradient and weight
gradient: `pleat bench grouped` binds the product, this program makes the same one with the same rows per expert and
numbers of the same distribution, and the two are timed in turns of a few runs, so that clocks, temperature and power
are the same for both. Before each run both overwrite a buffer of four L2 caches. One of the two waits while the other
runs.

Prints the medians and their ratio (above 1: Pleat is faster) and how many cases lie below the bound.
Needs a GPU and torch; the product does not need torch.
    python3 tools/compare_grouped.py --pleat build/cuda/pleat
    python3 tools/compare_grouped.py --filter "qwen3 w13" --rounds 15 --out grouped.json

Exits 1 when a case is below the bound, or fails.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

# name, tokens, hidden width, width of an expert, experts, experts per token: the peers' micro-batches
MODELS = [("mixtral", 8192, 4096, 14336, 8, 2), ("deepseek-v3", 8192, 7168, 2048, 32, 8),
          ("qwen3-30b-a3b", 16384, 2048, 768, 128, 8), ("olmoe-1b-7b", 4096, 2048, 1024, 64, 8)]
LOADS = ("even", "random", "skewed")
DIRECTIONS = ("fwd", "dgrad", "wgrad")
SKEW = 4  # skewed: the first expert's rows over the mean


def rows_of(tokens, experts, top_k, load):
    """Rows of each expert; their sum is tokens * top_k."""
    total = tokens * top_k
    if load == "random":  # choices of a router with a mild taste
        source = torch.Generator().manual_seed(5)
        taste = 0.3 * torch.randn(experts, generator=source)
        chosen = (torch.randn(tokens, experts, generator=source) + taste).topk(top_k, -1).indices
        return torch.bincount(chosen.flatten(), minlength=experts).tolist()
    first = total // experts if load == "even" else min(tokens, SKEW * total // experts)
    rows = [first] + [(total - first) // (experts - 1)] * (experts - 1)
    rows[-1] += total - sum(rows)
    return rows


def cases(filter_words):
    for name, tokens, hidden, ffn, experts, top_k in MODELS:
        for load in LOADS:
            rows = rows_of(tokens, experts, top_k, load)
            for matrix, width_in, width_out in (("w13", hidden, 2 * ffn), ("w2", ffn, hidden)):
                for direction in DIRECTIONS:
                    case = {"name": f"{name} {matrix} {load} {direction}", "direction": direction,
                            "in": width_in, "out": width_out, "rows": rows}
                    if all(word in case["name"] for word in filter_words):
                        yield case


class Pleat:
    """A `pleat bench grouped` that waits for the next line."""

    def __init__(self, binary):
        self.process = subprocess.Popen([binary, "bench", "grouped"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer is empty then
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"pleat bench grouped ended with code {self.process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def prepare(self, case):
        self.ask({key: case[key] for key in ("direction", "in", "out", "rows")})

    def times(self, runs):
        return self.ask({"run": runs})["ms"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def random_numbers(*shape):
    """Mean 0, between -2 and 2, a triangle: what `pleat bench` fills its arguments with."""
    return (torch.rand(*shape, device="cuda").add_(torch.rand(*shape, device="cuda")) - 1).mul_(2).bfloat16()


class Torch:
    def __init__(self):
        self.product = getattr(torch, "_grouped_mm", None) or torch.nn.functional.grouped_mm
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.other = torch.empty(4 * l2_bytes, dtype=torch.uint8, device="cuda")

    def prepare(self, case):
        self.run = None
        torch.cuda.empty_cache()
        rows, experts = sum(case["rows"]), len(case["rows"])
        width_in, width_out = case["in"], case["out"]
        ends = torch.tensor(case["rows"]).cumsum(0).to(torch.int32).cuda()
        if case["direction"] == "fwd":
            x, w = random_numbers(rows, width_in), random_numbers(experts, width_out, width_in)
            self.run = lambda: self.product(x, w.transpose(-2, -1), offs=ends)
        elif case["direction"] == "dgrad":
            dy, w = random_numbers(rows, width_out), random_numbers(experts, width_out, width_in)
            self.run = lambda: self.product(dy, w, offs=ends)
        else:
            dy, x = random_numbers(rows, width_out), random_numbers(rows, width_in)
            self.run = lambda: self.product(dy.transpose(-2, -1), x, offs=ends)
        torch.cuda.synchronize()

    def times(self, runs):
        out = []
        for _ in range(runs):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.other.zero_()
            begin.record()
            self.run()
            end.record()
            end.synchronize()
            out.append(begin.elapsed_time(end))
        return out


def compare(case, sides, rounds, runs):
    """Medians in ms, by side."""
    times = {name: [] for name in sides}
    for side in sides.values():
        side.prepare(case)
    for side in sides.values():
        side.times(runs)  # warm
    for turn in range(rounds):
        order = list(sides.items())
        for name, side in order if turn % 2 == 0 else order[::-1]:
            times[name] += side.times(runs)
    return {name: statistics.median(ms) for name, ms in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pleat", default="build/cuda/pleat", help="the binary")
    parser.add_argument("--filter", default="", help="only cases whose name holds all of these words")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side")
    parser.add_argument("--runs", type=int, default=3, help="timed runs in a turn")
    parser.add_argument("--bound", type=float, default=0.98, help="the ratio a case must reach")
    parser.add_argument("--out", help="write the results as JSON")
    arguments = parser.parse_args()
    start = time.time()
    sides = {"pleat": Pleat(arguments.pleat), "torch": Torch()}
    results = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; ms, ratio = torch / pleat\n"
          f"{'case':36s} {'rows min':>8s} {'max':>6s} {'pleat':>8s} {'torch':>8s} {'TFLOP/s':>8s} {'ratio':>6s}")
    for case in cases(arguments.filter.split()):
        rows = case["rows"]
        result = {key: case[key] for key in ("name", "in", "out", "rows")}
        try:
            ms = compare(case, sides, arguments.rounds, arguments.runs)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            result["error"] = str(error)[:200]
            print(f"{case['name']:36s} failed: {result['error']}", flush=True)
        else:
            flops = 2.0 * sum(rows) * case["in"] * case["out"]
            result.update(pleat_ms=ms["pleat"], torch_ms=ms["torch"], ratio=ms["torch"] / ms["pleat"],
                          pleat_tflops=flops / ms["pleat"] / 1e9)
            print(f"{case['name']:36s} {min(rows):8d} {max(rows):6d} {ms['pleat']:8.4f} {ms['torch']:8.4f} "
                  f"{result['pleat_tflops']:8.1f} {result['ratio']:6.3f}"
                  f"{'  <' if result['ratio'] < arguments.bound else ''}", flush=True)
        results.append(result)
    sides["pleat"].close()
    ratios = [r["ratio"] for r in results if "ratio" in r]
    below = [r for r in results if "ratio" not in r or r["ratio"] < arguments.bound]
    summary = {"cases": len(results), "below": len(below), "bound": arguments.bound,
               "seconds": round(time.time() - start, 1)}
    if ratios:
        summary.update(median_ratio=statistics.median(ratios), min_ratio=min(ratios))
        print(f"ratio: median {summary['median_ratio']:.3f}, least {summary['min_ratio']:.3f}")
    print(f"{len(below)} of {len(results)} cases below {arguments.bound} or failed; {summary['seconds']} s")
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, **summary,
                       "results": results}, file, indent=1)
    return 1 if below or not results else 0


if __name__ == "__main__":
    if any(word in ("-h", "--help") for word in sys.argv[1:]):
        main()
    import torch
    sys.exit(main())
