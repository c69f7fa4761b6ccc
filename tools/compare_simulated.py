#!/usr/bin/env python3
"""Simulated against measured: steps of thread ranks on this CPU, layout by layout.

By turns, because a machine that others use is now slow and now fast: in every round each layout's stages are measured
(`pleat bench costs`), with how cores slow each other at that time, then it trains a few steps, then it is simulated from
those costs. Printed is the median over the rounds of simulated / measured. Links are measured at the start of a round.

  tools/compare_simulated.py --config model.toml --rounds 3 "1" "2" "2 parallel.ep=2" "4 parallel.ep=2 parallel.pp=2"

A layout is a number of ranks and keys. The configuration needs no data: a text of random words is made.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

LAYOUTS = ["1", "2", "2 parallel.ep=2", "2 parallel.tp=2", "2 parallel.pp=2", "2 parallel.cp=2",
           "4 parallel.ep=2 parallel.pp=2"]


def run(pleat, *words):
    done = subprocess.run([pleat, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"pleat {' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def make_text(path):
    source = random.Random(1)
    words = ["".join(source.choices("abcdefghijklmnop", k=source.randint(2, 9))) for _ in range(3000)]
    path.write_text("\n\n".join(" ".join(source.choices(words, k=200)) for _ in range(400)))


def measured_ms(pleat, folder, config, ranks, sets, steps, text):
    run_dir = folder / "run"
    subprocess.run(["rm", "-rf", str(run_dir)], check=True)
    words = ["train", config, "--set", f"data.train={text}", "--set", "data.tokenizer=byte", "--set",
             f"log.run_dir={run_dir}", "--set", "checkpoint.every=0", "--set", f"train.steps={steps}"]
    if ranks > 1:
        words += ["--ranks", ranks]
    run(pleat, *words, *sets)
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line).get("step_seconds") for line in lines]
    return 1e3 * statistics.median([s for s in seconds if s][2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pleat", default="build/cpu/pleat")
    parser.add_argument("--config", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="trained steps; the first two do not count")
    parser.add_argument("--even", action="store_true", help="routing without regard to the text, balanced")
    parser.add_argument("layouts", nargs="*", default=LAYOUTS)
    a = parser.parse_args()
    rows = {layout: [] for layout in a.layouts}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_text(folder / "text.txt")
        for turn in range(a.rounds):
            common = folder / "machine.json"
            one = ["--set", "device.threads=1"] + (["--set", "moe.force_routing=balanced"] if a.even else [])
            run(a.pleat, "bench", "costs", a.config, "--out", common, "--no-neighbours", "--no-crowd", "--steps", 3, *one)
            for layout in a.layouts:
                ranks, *keys = layout.split()
                sets = one + [word for key in keys for word in ("--set", key)]
                costs = folder / "costs.json"
                run(a.pleat, "bench", "costs", a.config, "--ranks", ranks, "--out", costs, "--no-neighbours", "--no-links", "--steps", 5, *sets)
                ms = measured_ms(a.pleat, folder, a.config, int(ranks), sets, a.steps, folder / "text.txt")
                said = json.loads(run(a.pleat, "simulate", a.config, "--ranks", ranks, "--costs", costs, "--costs", common,
                                      "--json", *sets))
                rows[layout].append((said["step_ms"], ms))
                print(f"round {turn + 1}: {layout:40} simulated {said['step_ms']:9.1f} ms, measured {ms:9.1f} ms", flush=True)
    print(f"\n{'layout':40} {'simulated':>10} {'measured':>10} {'off by':>8}")
    for layout, pairs in rows.items():
        ratio = statistics.median(s / m for s, m in pairs)
        print(f"{layout:40} {statistics.median(s for s, _ in pairs):7.1f} ms {statistics.median(m for _, m in pairs):7.1f} ms "
              f"{100 * (ratio - 1):+6.1f} %")


if __name__ == "__main__":
    main()
