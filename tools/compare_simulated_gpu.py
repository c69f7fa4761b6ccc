#!/usr/bin/env python3
"""Simulated against measured on one GPU: whole models and slices of them, one costs file each.

For every case: its stages are measured (`pleat bench costs`), its step is (`pleat bench step`, as one graph), then it is
simulated from its own costs, and from curves that were fitted to the costs of all other cases. Then three sets of
recompute.modules: how much longer the step gets, simulated and measured. Prints a table and writes all of it as JSON.
Exits with 1 where a step is off by more than 5 % (costs) or 12 % (curves), or a change by more than a fifth of itself.

  tools/compare_simulated_gpu.py --pleat build/cuda/pleat --out simulated
  tools/compare_simulated_gpu.py --pleat build/cpu/pleat --out simulated --try    two tiny cases on a CPU: does it run?

Files that are in --out already are not measured again, so that a comparison can go on in another run.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPU = ["device.kind=cuda", "model.dtype=bfloat16", "train.seq_len=4096"]
CASES = {
    "mixtral-slice": ("mixtral-8x7b", ["model.num_layers=3", "train.micro_batch=2", "train.num_microbatches=4"]),
    "deepseek-v3-slice": ("deepseek-v3", ["model.num_layers=2", "model.leading_dense_layers=", "model.ffn_hidden_size=",
                                          "model.num_mtp_layers=", "moe.num_experts=32", "moe.num_groups=",
                                          "moe.group_topk=", "moe.group_score_topk=", "model.vocab_size=32768",
                                          "train.micro_batch=2", "train.num_microbatches=4"]),
    "qwen3-30b-a3b-slice": ("qwen3-30b-a3b", ["model.num_layers=6", "model.vocab_size=32768", "train.micro_batch=4",
                                              "train.num_microbatches=4"]),
    "olmoe-1b-7b": ("olmoe-1b-7b", ["train.micro_batch=1", "train.num_microbatches=4"]),
    "deepseek-v2-lite-slice": ("deepseek-v2-lite", ["model.num_layers=6", "model.vocab_size=32768", "train.micro_batch=2",
                                                    "train.num_microbatches=4"]),
    "gpt-oss-20b-slice": ("gpt-oss-20b", ["model.num_layers=4", "model.vocab_size=32768", "train.micro_batch=2",
                                          "train.num_microbatches=4"]),
}
RECOMPUTE_OF = "qwen3-30b-a3b-slice"
RECOMPUTE = ['["core_attention"]', '["experts"]', '["layer"]']
TRY = {"tiny": ("../tiny", []), "tiny-wide": ("../tiny", ["model.hidden_size=128", "train.micro_batch=4"])}


class Comparison:
    def __init__(self, a):
        self.a, self.out = a, pathlib.Path(a.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.cases = TRY if a.try_it else CASES
        self.common = ["device.threads=1"] if a.try_it else GPU
        self.machine = a.machine or ("cpu" if a.try_it else "h200")

    def words(self, name, more=()):
        config, sets = self.cases[name]
        words = [str(ROOT / f"configs/models/{config}.toml")]
        for s in [*self.common, *sets, *more]:
            words += ["--set", s]
        return words

    def run(self, *words):
        done = subprocess.run([self.a.pleat, *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"pleat {' '.join(map(str, words))}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def measured(self, name, tag="", more=()):
        path = self.out / f"step-{name}{tag}.json"
        if not path.exists():
            self.run("bench", "step", *self.words(name, more), "--steps", self.a.steps, "--out", path)
        return json.loads(path.read_text())["ms_per_step"]

    def costs(self, name, tag="", more=()):
        path = self.out / f"costs-{name}{tag}.json"
        if not path.exists():
            neighbours = [] if self.a.neighbours and not tag else ["--no-neighbours"]
            self.run("bench", "costs", *self.words(name, more), "--out", path, "--steps", self.a.cost_steps, *neighbours)
        return path

    def simulated(self, name, flag, path, more=()):
        return json.loads(self.run("simulate", *self.words(name, more), "--ranks", 1, "--machine", self.machine, flag, path, "--json"))

    def compare(self):
        rows, start = [], time.monotonic()
        for name in self.cases:
            self.measured(name), self.costs(name)
            print(f"{name}: measured after {time.monotonic() - start:.0f} s", flush=True)
        for name in self.cases:
            others = [self.costs(other) for other in self.cases if other != name]
            curves = self.out / f"curves-without-{name}.toml"
            fit = json.loads(self.run("bench", "fit", *others, "--machine", self.machine, "--out", curves, "--json"))
            by_costs = self.simulated(name, "--costs", self.costs(name))
            by_curves = self.simulated(name, "--curves", curves)
            ms = self.measured(name)
            rows.append({"case": name, "measured_ms": ms, "costs_ms": by_costs["step_ms"], "curves_ms": by_curves["step_ms"],
                         "costs_off": by_costs["step_ms"] / ms - 1, "curves_off": by_curves["step_ms"] / ms - 1,
                         "times_from": by_costs["times_from"], "fit": fit["fits"]})
        base = next(iter(self.cases)) if self.a.try_it else RECOMPUTE_OF
        changes = []
        for i, modules in enumerate(RECOMPUTE):
            more = [f"recompute.modules={modules}"]
            longer = self.measured(base, f"-recompute{i}", more) - self.measured(base)
            said = self.simulated(base, "--costs", self.costs(base), more)["step_ms"] - next(
                r["costs_ms"] for r in rows if r["case"] == base)
            changes.append({"modules": modules, "measured_ms": longer, "simulated_ms": said,
                            "off": said / longer - 1 if longer else 0.0})
        return rows, changes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pleat", default="build/cuda/pleat")
    parser.add_argument("--out", required=True, help="folder of measured files, curves and result.json")
    parser.add_argument("--machine", help="described machine (default h200; cpu with --try)")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--cost-steps", type=int, default=5)
    parser.add_argument("--neighbours", action="store_true", help="also measure sizes halved and doubled: better curves, takes long")
    parser.add_argument("--try", dest="try_it", action="store_true")
    comparison = Comparison(parser.parse_args())
    rows, changes = comparison.compare()
    (comparison.out / "result.json").write_text(json.dumps({"steps": rows, "recompute": changes}, indent=1))
    print(f"\n{'step':26} {'measured':>11} {'from costs':>20} {'from curves of others':>24}")
    for r in rows:
        print(f"{r['case']:26} {r['measured_ms']:8.2f} ms {r['costs_ms']:9.2f} ms {100 * r['costs_off']:+5.1f} % "
              f"{r['curves_ms']:12.2f} ms {100 * r['curves_off']:+6.1f} %")
    print(f"\n{'recompute.modules':26} {'measured':>11} {'from costs':>20}")
    for c in changes:
        print(f"{c['modules']:26} {c['measured_ms']:+8.2f} ms {c['simulated_ms']:+9.2f} ms {100 * c['off']:+5.1f} %")
    bad = any(abs(r["costs_off"]) > 0.05 or abs(r["curves_off"]) > 0.12 for r in rows)
    sys.exit(1 if bad or any(abs(c["off"]) > 0.2 for c in changes) else 0)


if __name__ == "__main__":
    main()
