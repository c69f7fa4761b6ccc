#!/usr/bin/env python3
"""lm-evaluation-harness with Pleat as the model: requests and answers travel in files, one call of the binary each.

    python tools/lm_eval_pleat.py run --model pleat --model_args model=RUN_OR_MODEL_FOLDER,pleat=build/cpu/pleat \\
        --tasks arc_easy

Everything after the script's name is lm_eval's own command line.
"""
import json
import os
import subprocess
import tempfile

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model


@register_model("pleat")
class Pleat(LM):
    def __init__(self, model, pleat="pleat", threads=0, **_):
        super().__init__()
        self.model, self.pleat, self.threads = model, pleat, str(threads)

    def _call(self, command, lines, *options):
        """The objects the command answers a file of objects with, in their order."""
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = os.path.join(folder, "asked.jsonl"), os.path.join(folder, "answered.jsonl")
            with open(asked, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            files = ["--requests", asked, "--out", answered, "--quiet"] if command == "eval" else ["--prompts", asked, "--json"]
            done = subprocess.run([self.pleat, command, self.model, "--threads", self.threads, *files, *options],
                                  check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, encoding="utf-8")
            text = open(answered, encoding="utf-8").read() if command == "eval" else done.stdout
        return [json.loads(line) for line in text.splitlines()]

    def loglikelihood(self, requests, disable_tqdm=False):
        asked = [{"context": r.args[0], "continuation": r.args[1]} for r in requests]
        return [(a["loglikelihood"], a["is_greedy"]) for a in self._call("eval", asked)]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return [a["loglikelihood"] for a in self._call("eval", [{"text": r.args[0]} for r in requests])]

    def generate_until(self, requests, disable_tqdm=False):
        out = [""] * len(requests)
        groups = {}  # requests that end alike run together
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        for settings, members in groups.items():
            s = json.loads(settings)
            until = [s["until"]] if isinstance(s.get("until"), str) else s.get("until") or []
            temperature = s.get("temperature", 0) if s.get("do_sample", False) else 0
            options = ["--max-tokens", str(s.get("max_gen_toks", 256)), "--temperature", str(temperature)]
            for stop in until:
                options += ["--stop", stop]
            answers = self._call("generate", [{"prompt": requests[i].args[0]} for i in members], *options)
            for i, answer in zip(members, answers):
                out[i] = answer["text"]
        return out


if __name__ == "__main__":
    cli_evaluate()
