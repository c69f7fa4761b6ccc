#!/usr/bin/env python3
"""Runs the GPU kernel tests under compute-sanitizer and says which of them are clean.

Every test is a process of its own, several at a time: memcheck and racecheck each, longest first by what an earlier
run noted. Kernels that are not ours (cuDNN, cuBLAS) may report races; these are counted beside ours and do not fail
the run. Tests of whole steps, models and layouts are left out: they launch the same kernels thousands of times.
racecheck looks at shared memory only; tests of kernels without any are left out of it. PLEAT_TEST_ONCE is set: every
case is launched once, and some sizes that take the way of others are left out (tests/cuda/cuda_support.h).
Processes share one GPU: tests that are slow there under racecheck (CudaEmbedding.Gradient*) hold up all others; run
them by themselves, with --only and --jobs 2.

Example: tools/sanitize_gpu.py --test build/cuda/test_cuda --limit 600 --out sanitize.json
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

WHOLE = re.compile(r"CudaStep|CudaHostStates|CudaOffload|CudaPinned|CudaChoices|CudaGolden|CudaLayouts|CudaRanks|CudaLayerBench|Nccl")
NOTHING_SHARED = re.compile(r"CudaComm")  # kernels without shared memory, the only thing racecheck looks at


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--test", default="build/cuda/test_cuda", help="the test program")
    p.add_argument("--tools", default="memcheck racecheck", help="tools of compute-sanitizer, by spaces")
    p.add_argument("--only", default="", help="regular expression of tests to run; default: all kernel tests")
    p.add_argument("--jobs", type=int, default=16, help="processes at a time")
    p.add_argument("--limit", type=int, default=1800, help="seconds for all of it; what has not ended is named")
    p.add_argument("--order", default="", help="an earlier --out file: longest first")
    p.add_argument("--out", default="", help="write all results as JSON")
    p.add_argument("--logs", default="", help="folder for the whole output of tests that are not clean")
    return p.parse_args()


def kernel_tests(test):
    suite, names = "", []
    for line in subprocess.run([test, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout.splitlines():
        name = line.split("#")[0]
        if name.startswith(" "):
            names.append(suite + name.strip())
        elif name.strip().endswith("."):
            suite = name.strip()
    return [n for n in names if not WHOLE.search(n)]


def reports(text):
    """(ours, of others): reports by whose kernel they name. What the tool's summary counts beyond them is ours."""
    ours = others = 0
    for part in re.split(r"\n========= *\n", text):
        if not re.search(r"========= (Error|Warning|Invalid|Program hit|Fatal|Address|Uninitialized)", part):
            continue
        if "Race reported" in part and "pleat::" not in part:
            others += 1
        else:
            ours += 1
    counted = re.findall(r"SUMMARY: (\d+) ", text)
    return max(ours, sum(map(int, counted)) - others), others


def run(job):
    test, tool, name, deadline = job
    left = deadline - time.time()
    result = {"test": name, "tool": tool, "seconds": 0.0, "state": "not started", "ours": 0, "others": 0}
    if left < 5:
        return result, ""
    begin = time.time()
    environment = dict(os.environ, PLEAT_TEST_ONCE="1")
    try:
        process = subprocess.Popen(["compute-sanitizer", "--tool", tool, test, "--gtest_filter=" + name],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                                   start_new_session=True)
        text = process.communicate(timeout=left)[0].decode(errors="replace")
        result["ours"], result["others"] = reports(text)
        ended = "SUMMARY" in text and "[  PASSED  ] 1 test" in text
        result["state"] = "ended" if ended else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the test, too
        text = process.communicate()[0].decode(errors="replace")
        result["ours"], result["others"] = reports(text)
        result["state"] = "not ended"
    result["seconds"] = round(time.time() - begin, 1)
    return result, text


def show_progress(results, jobs, workers, deadline):
    """Progress on a terminal: what is left takes as long as what has ended did, and no longer than the limit."""
    if not sys.stderr.isatty():
        return
    ended = len(results)
    left = sum(r["seconds"] for r in results) / ended * (jobs - ended) / workers
    left = max(0, min(left, deadline - time.time()))
    print(f"\r{ended} of {jobs} tests, about {left:.0f} s left ", end="\n" if ended == jobs else "", file=sys.stderr,
          flush=True)


def main():
    a = arguments()
    if not shutil.which("compute-sanitizer"):
        sys.exit("sanitize_gpu: compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    if not os.access(a.test, os.X_OK):
        sys.exit(f"sanitize_gpu: '{a.test}' is no program; needed: test_cuda of the preset cuda (./dev cuda builds it)")
    names = [n for n in kernel_tests(a.test) if re.search(a.only, n)]
    jobs = [(tool, n) for tool in a.tools.split() for n in names
            if tool != "racecheck" or not NOTHING_SHARED.search(n)]
    if not jobs:
        sys.exit(f"sanitize_gpu: no kernel test of {a.test} matches '{a.only}'")
    before = {(r["tool"], r["test"]): r["seconds"] for r in json.load(open(a.order))} if a.order else {}
    jobs.sort(key=lambda j: -before.get(j, 30))
    deadline = time.time() + a.limit
    results = []
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        waiting = [pool.submit(run, (a.test, tool, n, deadline)) for tool, n in jobs]
        for done in concurrent.futures.as_completed(waiting):
            result, text = done.result()
            results.append(result)
            show_progress(results, len(jobs), a.jobs, deadline)
            clean = result["state"] == "ended" and result["ours"] == 0
            if not clean:
                print(f"{result['tool']} {result['test']}: {result['state']}, {result['ours']} reports, "
                      f"{result['seconds']} s", flush=True)
            if a.logs and (not clean or result["others"]):
                os.makedirs(a.logs, exist_ok=True)
                name = f"{result['tool']}.{result['test'].replace('/', '_')}.txt"
                open(os.path.join(a.logs, name), "w").write(text)
    if a.out:
        json.dump(results, open(a.out, "w"), indent=1)
    worst = 0
    for tool in a.tools.split():
        of = [r for r in results if r["tool"] == tool]
        clean = sum(r["state"] == "ended" and r["ours"] == 0 for r in of)
        others = sum(r["others"] for r in of)
        note = f", {others} reports in kernels that are not ours" if others else ""
        print(f"{tool}: {clean} of {len(of)} tests clean, {sum(r['seconds'] for r in of):.0f} s of processes{note}")
        worst |= clean != len(of)
    return int(worst)


sys.exit(main())
