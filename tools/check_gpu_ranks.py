#!/usr/bin/env python3
"""What several ranks on one GPU must show: bits, host waits, faults, strangers, kills, memory. Prints a line for each.

Ranks are processes that share the GPU, over an NCCL that allows it (2.32 or later; its folder comes first in
LD_LIBRARY_PATH). Correctness only: times between ranks that share a GPU mean nothing. All checks but those of times run
side by side.

  tools/check_gpu_ranks.py --pleat build/cuda/pleat --test build/cuda/test_cuda --out checks
  tools/check_gpu_ranks.py --pleat build/cpu/pleat --device cpu --only 'bits|strangers|kills'     do the checks run? on CPU ranks

Exits with 1 where a check fails.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BITS = {"windows": ["parallel.exchange=windows"], "windows, again": ["parallel.exchange=windows"],
        "windows, stage by stage": ["parallel.exchange=windows", "device.graph=false"],
        "padded": ["parallel.exchange=padded"], "counted": ["parallel.exchange=counted"]}


def said(code, log):
    """Why a process failed: never empty, whatever it wrote"""
    return f"{'ran out of time' if code == 124 else f'ended with {code}'}: {log.strip()[-300:]}"


class Checks:
    def __init__(self, a):
        self.a, self.gpu = a, a.device == "cuda"
        self.out = pathlib.Path(a.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.text = self.out / "text.txt"
        self.text.write_text("".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))))
        # Little memory of NCCL: many ranks at a time.
        self.env = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_NCHANNELS": "4", "NCCL_BUFFSIZE": "1048576"}

    def words(self, run, sets):
        sets = [f'data.train="{self.text}"', f'log.run_dir="{self.out / run}"', "optimizer.warmup_steps=1", *sets,
                *(['device.kind="cuda"', 'model.dtype="bfloat16"'] if self.gpu else ["device.threads=1"])]
        words = ["train", str(ROOT / "configs/tiny.toml"), "--quiet"]
        for s in sets:
            words += ["--set", s]
        return words

    def launch(self, ranks, run, sets, seconds=90, env=None):
        words = [self.a.pleat, "launch", "--gpus" if self.gpu else "--ranks", str(ranks), *self.words(run, sets)]
        return self.process(run, words, seconds, env)

    def process(self, name, words, seconds, env=None):
        log = self.out / f"{name.replace(' ', '_')}.log"
        with open(log, "wb") as to:
            try:
                code = subprocess.run(words, stdout=to, stderr=to, env=env or self.env, timeout=seconds, check=False).returncode
            except subprocess.TimeoutExpired:
                code = 124
        return code, log.read_text(errors="replace")

    def digest(self, run):
        try:
            return json.loads((self.out / run / "summary.json").read_text())["state_sha256"][:12]
        except FileNotFoundError:
            return ""

    # ---- checks: each returns what is wrong (empty: nothing) and what was seen

    def bits(self):
        """EP 4: every way of exchange, graph and stages, twice: one state; EP 8 once"""
        seen = {}
        for name, sets in BITS.items():
            if not self.gpu and "device.graph=false" in sets:
                continue
            if not self.gpu and "parallel.exchange=counted" not in sets:
                sets = []
            run = f"bits {name}"
            self.launch(4, run, ["parallel.ep=4", "train.num_microbatches=4", "train.steps=50", *sets])
            seen[name] = self.digest(run)
        code, _ = self.launch(8, "bits of eight", ["parallel.ep=8", "train.num_microbatches=8", "train.steps=5"])
        states = set(seen.values())
        wrong = f"{seen}" if len(states) != 1 or "" in states else f"eight ranks ended with {code}" if code else ""
        return wrong, f"{len(seen)} runs of 4 ranks, 50 steps: {', '.join(states)}"

    def host_waits(self):
        """EP 4 on windows: host waits of a step, by the program and by the host's own calls"""
        said = subprocess.run([self.a.pleat, "explain", str(ROOT / "configs/tiny.toml"), "--ranks", "4", "--stages-only", "--set",
                               "device.kind=cuda", "--set", "model.dtype=bfloat16", "--set", "parallel.ep=4", "--set",
                               "train.num_microbatches=4"], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        library, to = self.out / "host_waits.so", self.out / "waits"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", str(ROOT / "tools/host_waits.c"), "-o", str(library), "-ldl"], check=True)
        for old in glob.glob(f"{to}.*"):
            os.remove(old)
        code, log = self.launch(4, "host waits", ["parallel.ep=4", "parallel.exchange=windows", "train.num_microbatches=4",
                                                  "train.steps=12"],
                                env={**self.env, "LD_PRELOAD": str(library), "HOST_WAITS_FILE": str(to)})
        counts = [list(map(int, pathlib.Path(p).read_text().splitlines()[0].split(":")[1].split())) for p in glob.glob(f"{to}.*")]
        wrong = said(code, log) if code else "" if len(counts) == 4 else f"{len(counts)} of 4 ranks launched graphs"
        if not wrong and (not said.endswith(" 0 host waits per step") or any(set(c[:-1]) - {1} for c in counts)):
            wrong = "more than the wait at a step's end"
        return wrong, f"{said}; waits between launches: {[sorted(set(c[:-1])) for c in counts]}"

    def tests(self, name, only, env=None, shards=1):
        def shard(i):
            more = {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(i), **(env or {})}
            return self.process(f"{name} {i}", [self.a.test, f"--gtest_filter={only}"], 170, {**self.env, **more})
        with concurrent.futures.ThreadPoolExecutor(shards) as pool:
            done = list(pool.map(shard, range(shards)))
        log = "".join(text for _, text in done)
        ok, failed = len(re.findall(r"^\[       OK \]", log, re.M)), re.findall(r"^\[  FAILED  \] (\S+?),? .*ms\)$", log, re.M)
        longest = max(map(int, re.findall(r"\((\d+) ms\)$", log, re.M)), default=0)
        late = [str(i) for i, (code, _) in enumerate(done) if code == 124]
        codes = [code for code, _ in done if code]
        wrong = ", ".join(failed) or (f"shards {', '.join(late)} ran out of time" if late else f"ended with {codes}" if codes
                                      else "" if ok else "no test ran")
        return wrong, f"{ok} tests, the longest {longest / 1000:.1f} s"

    def nccl(self):
        """groups and calls over NCCL; steps of two ranks with the bits of threads"""
        return self.tests("nccl", "CudaNcclRanks.*:CudaNcclGroups.*:CudaComm.Nccl*")

    def layouts(self):
        """thread ranks on the GPU against one rank, float32 and bfloat16 with replayed routing; a lost reduction is found"""
        return self.tests("layouts", "CudaLayouts.*:CudaExchange.*:*CudaExchange.*:*CudaRanks.*", shards=2)

    def faults(self):
        """ranks that are killed, stopped, slow, throw or call in another order, over NCCL"""
        return self.tests("faults", "*CudaNcclFaults*", {"PLEAT_NCCL_FAULTS_ALL": "1"}, shards=8)

    def kills(self):
        """random kills around saves, in chains"""
        code, log = self.process("kills", [sys.executable, str(ROOT / "tools/kill_ranks.py"), "--pleat", self.a.pleat, "--device", self.a.device,
                                           "--out", str(self.out / "kill_ranks")], 200)
        return ("" if code == 0 else said(code, log)), log.strip().splitlines()[-1] if log.strip() else ""

    def strangers(self):
        """two ranks meet while others knock at their port, one with a wrong token"""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        def rank(i, token):
            env = {**self.env, "RANK": str(i), "LOCAL_RANK": str(i), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "PLEAT_JOB_TOKEN": token}
            words = [self.a.pleat, *self.words("strangers", ["train.steps=3", "comm.timeout=20", "parallel.ep=2", "train.num_microbatches=2"])]
            return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        knocks, over = 0, threading.Event()
        def knock():
            nonlocal knocks
            while not over.is_set() and knocks < 5000:
                for data in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), b"\xff" * 64):
                    try:
                        with socket.create_connection(("127.0.0.1", port), 0.2) as c:
                            c.sendall(data)
                            knocks += 1
                    except OSError:
                        pass
                    time.sleep(0.01)
        threading.Thread(target=knock, daemon=True).start()
        first = rank(0, "right")
        time.sleep(0.5)
        stranger = rank(1, "wrong")
        said = stranger.communicate(timeout=60)[0].strip()
        second = rank(1, "right")
        ends = [p.communicate(timeout=90)[0].strip()[-300:] for p in (first, second)]
        over.set()
        wrong = "" if stranger.returncode != 0 and first.returncode == second.returncode == 0 and knocks else f"{ends}"
        return wrong, f"{knocks} strangers; with a wrong token: code {stranger.returncode}, {said.splitlines()[-1][-160:] if said else ''}"

    def nccl_memory(self):
        """what NCCL takes of the GPU for four ranks with its own settings, beside the estimate"""
        env = {k: v for k, v in self.env.items() if k not in ("NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE")}
        env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ALLOC", "NCCL_DEBUG_FILE": str(self.out / "nccl.%p.log")}
        code, log = self.launch(4, "nccl memory", ["parallel.ep=4", "train.num_microbatches=4", "train.steps=2"], env=env)
        if code:
            return said(code, log), ""
        summary = json.loads((self.out / "nccl memory" / "summary.json").read_text())
        planned, measured = (summary.get(k, 0) / 2**30 for k in ("nccl_planned_bytes", "nccl_measured_bytes"))
        return "", f"estimated {planned:.2f} GiB, measured {measured:.2f} GiB; allocations in nccl.*.log"

    def windows(self):
        """kernels of rows through windows, share of the copy rate"""
        code, log = self.process("windows", [self.a.pleat, "bench", "kernels", "--filter", "windows", "--repeats", "10"], 90)
        print(log)
        return ("" if code == 0 else said(code, log)), ""

    def start(self):
        """from the command to the end of the first step of qwen3-30b-a3b's slice, nothing kept and algorithms kept"""
        seen = []
        for kept in ("nothing", "algorithms"):
            run = f"start, {kept} kept"
            words = [self.a.pleat, "train", str(ROOT / "configs/models/qwen3-30b-a3b.toml"), "--quiet"]
            for s in (f'data.train="{self.text}"', "device.kind=cuda", "model.dtype=bfloat16", "model.num_layers=6", "model.vocab_size=32768",
                      "train.seq_len=4096", "train.micro_batch=4", "train.num_microbatches=4", "train.steps=1", "train.eval_every=",
                      "checkpoint.save_at_end=false", "optimizer.lr=1e-4", "optimizer.min_lr=1e-5", f'log.run_dir="{self.out / run}"'):
                words += ["--set", s]
            code, log = self.process(run, words, 90, {**self.env, "PLEAT_CACHE_DIR": str(self.out / "start cache")})
            if code:
                return said(code, log), ""
            seconds = json.loads((self.out / run / "summary.json").read_text())["start_seconds"]
            seen.append(f"{kept} kept: {json.dumps(seconds)}")
        return "", "; ".join(seen)


TOGETHER = ["bits", "host_waits", "nccl", "layouts", "faults", "kills", "strangers"]
ALONE = ["start", "windows", "nccl_memory"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pleat", default="build/cuda/pleat")
    p.add_argument("--test", default="build/cuda/test_cuda", help="the program of the GPU tests")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--out", default="build/gpu_ranks", help="folder for runs and logs")
    p.add_argument("--only", default="", help="regular expression of checks: " + ", ".join(ALONE + TOGETHER))
    a = p.parse_args()
    a.pleat, a.test = os.path.abspath(a.pleat), os.path.abspath(a.test)
    checks, bad = Checks(a), 0

    def run(name):
        begin = time.monotonic()
        try:
            wrong, seen = getattr(checks, name)()
        except (subprocess.SubprocessError, OSError, ValueError, KeyError) as e:
            wrong, seen = f"{type(e).__name__}: {e}", ""
        print(f"{'FAILED' if wrong else 'passed'}  {name:12} {time.monotonic() - begin:5.0f} s  {getattr(checks, name).__doc__}\n"
              f"        {seen}{chr(10) + '        ' + wrong if wrong else ''}", flush=True)
        return bool(wrong)

    chosen = lambda names: [n for n in names if re.search(a.only, n)]
    for name in chosen(ALONE):
        bad += run(name)
    with concurrent.futures.ThreadPoolExecutor(len(TOGETHER)) as pool:
        bad += sum(pool.map(run, chosen(TOGETHER)))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
