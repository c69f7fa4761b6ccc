#!/usr/bin/env python3
"""Launched ranks killed at random moments around saves, and started again: every run ends with the bits of one nobody touched.

Several chains of kills run side by side. A chain starts a run of two ranks that saves after every step, waits for a new
checkpoint, kills one rank or all of them with their launcher (SIGKILL; three times of four inside a save) and starts the
same command again. A start that makes no newer checkpoint than the one before it, or an end with other bits, fails.
tests/resume/ranks_kill_test.cpp does the same on CPU ranks in more layouts; this one takes GPU ranks too.

Example: tools/kill_ranks.py --pleat build/cuda/pleat --device cuda --chains 4 --kills 5
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pleat", default="build/cuda/pleat")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--chains", type=int, default=4)
    p.add_argument("--kills", type=int, default=5, help="of each chain")
    p.add_argument("--steps", type=int, default=30, help="of a run")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the moments; default: another one each time")
    p.add_argument("--out", help="folder for runs and logs, emptied first; default: a temporary one")
    return p.parse_args()


class Chains:
    def __init__(self, a):
        self.a, self.lock = a, threading.Lock()
        self.out = pathlib.Path(a.out or tempfile.mkdtemp(prefix="kill_ranks."))
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        self.text = self.out / "text.txt"
        self.text.write_text("".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))))
        self.choices = self.out / "choices.json"  # all starts take the same algorithms of products
        self.failures, self.kills, self.of_all, self.in_saves = [], 0, 0, 0

    def command(self, run):
        gpu = self.a.device == "cuda"
        sets = [f'data.train="{self.text}"', f'log.run_dir="{run}"', "parallel.ep=2", "checkpoint.every=1", "checkpoint.keep=3",
                f"train.steps={self.a.steps}", "optimizer.warmup_steps=1",
                *(['device.kind="cuda"', 'model.dtype="bfloat16"'] if gpu else ["device.threads=1"])]
        if self.choices.exists():
            sets.append(f'device.matmul_choices="{self.choices}"')
        words = [self.a.pleat, "launch", "--gpus" if gpu else "--ranks", "2", "--grace", "20", "train",
                 str(ROOT / "configs/tiny.toml"), "--quiet"]
        for s in sets:
            words += ["--set", s]
        return words

    def straight(self):
        run = self.out / "straight"
        done = subprocess.run(self.command(run), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"the run that nobody touches ended with {done.returncode}:\n{done.stderr[-1000:]}")
        if self.a.device == "cuda" and (run / "matmul_choices.json").exists():
            shutil.copy(run / "matmul_choices.json", self.choices)
        return digest(run)

    def fail(self, chain, why):
        with self.lock:
            self.failures.append(f"chain {chain}: {why}")

    def run(self, chain, want):
        rnd, run, made = random.Random(self.a.seed * 100 + chain), self.out / f"chain{chain}", 0
        with open(self.out / f"chain{chain}.log", "wb") as log:
            for _ in range(4 * self.a.kills):
                if made == self.a.kills:
                    break
                start = newest(run)
                launcher = subprocess.Popen(self.command(run), stdout=log, stderr=log)
                while launcher.poll() is None and newest(run) <= start:
                    time.sleep(0.001)
                if launcher.poll() is not None:
                    if launcher.returncode != 0:
                        return self.fail(chain, f"a start ended with {launcher.returncode}, see chain{chain}.log")
                    break  # done before it was killed
                made += self.kill(launcher, run, rnd)
                if newest(run) <= start:
                    self.fail(chain, f"no newer checkpoint than that of step {start}")
        last = subprocess.run(self.command(run), capture_output=True, text=True, check=False)
        if last.returncode != 0:
            return self.fail(chain, f"the last start ended with {last.returncode}: {last.stderr[-300:]}")
        if digest(run) != want:
            self.fail(chain, f"state {digest(run)[:12]}, needed {want[:12]}")

    # True where the kill met a run that still ran.
    def kill(self, launcher, run, rnd):
        ranks = children(launcher.pid)
        if rnd.random() < 0.75:
            deadline = time.monotonic() + 3
            while launcher.poll() is None and not is_saving(run) and time.monotonic() < deadline:
                pass
            time.sleep(rnd.random() * 0.004)
        else:
            time.sleep(rnd.random() * 0.1)
        everyone, saving = rnd.random() < 0.5, is_saving(run)
        for pid in [launcher.pid, *ranks] if everyone or not ranks else [rnd.choice(ranks)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        code, deadline = launcher.wait(), time.monotonic() + 30
        while any(lives(pid) for pid in ranks) and time.monotonic() < deadline:
            time.sleep(0.01)
        if code == 0:
            return False
        with self.lock:
            self.kills, self.of_all, self.in_saves = self.kills + 1, self.of_all + everyone, self.in_saves + saving
        return True


def digest(run):
    return json.loads((run / "summary.json").read_text())["state_sha256"]


def newest(run):
    try:
        names = [x.name for x in (run / "checkpoints").iterdir()]
    except FileNotFoundError:
        return -1
    return max([int(n.split("-")[-1]) for n in names if n.startswith("step-") and n.split("-")[-1].isdigit()], default=-1)


def is_saving(run):
    try:
        return any("tmp" in x.name for x in (run / "checkpoints").iterdir())
    except FileNotFoundError:
        return False


def children(pid):
    try:
        return [int(x) for x in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


def main():
    a = arguments()
    chains, begin = Chains(a), time.monotonic()
    print(f"seed {a.seed}", flush=True)
    want = chains.straight()
    threads = [threading.Thread(target=chains.run, args=(i, want)) for i in range(a.chains)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for failure in chains.failures:
        print("FAILED", failure)
    print(f"{chains.kills} kills ({chains.of_all} of all ranks), {chains.in_saves} inside a save, {a.chains} chains, "
          f"{len(chains.failures)} failures, state {want[:12]}, {time.monotonic() - begin:.0f} s")
    if not chains.failures and not a.out:
        shutil.rmtree(chains.out)
    enough = chains.kills >= 0.8 * a.chains * a.kills
    if not enough:
        print(f"FAILED only {chains.kills} kills met a run, needed {0.8 * a.chains * a.kills:.0f}")
    sys.exit(1 if chains.failures or not enough else 0)


if __name__ == "__main__":
    main()
