#!/usr/bin/env python3
"""Compares conversations written by chat templates with transformers' apply_chat_template, id by id and mask by mask.

    python -m venv VENV && VENV/bin/pip install transformers tokenizers jinja2
    VENV/bin/python tools/chat_parity.py --fixtures tests/data/template_data      # files for the tests, made again
    ninja -C build/cpu chat_cli
    VENV/bin/python tools/chat_parity.py --cli build/cpu/chat_cli --data tests/data/template_data [--count 2000]

The templates under tests/data/template_data are our own, in the manner of five model families. Each marks the
assistant's words with {% generation %}; transformers' mask of it is the oracle. The same template with the marks turned
into comments renders the same text, so the same mask is the oracle for the method that needs no marks.
"""
import argparse
import copy
import datetime
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = 1760011200  # noon, so that the day is the same nearly everywhere


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW)


chat_template_utils.datetime = FixedTime

CL = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
      r"|\s*[\r\n]+|\s+(?!\S)|\s+")

FAMILIES = {
    "llama3": dict(bos="<|begin_of_text|>", eos="<|eot_id|>", regex=[CL],
                   special=["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    "qwen3": dict(bos=None, eos="<|im_end|>", regex=[CL.replace(r"\p{N}{1,3}", r"\p{N}")], nfc=True,
                  special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                  plain=["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]),
    "mixtral": dict(bos="<s>", eos="</s>", sentencepiece=True,
                    special=["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                             "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]),
    "deepseek": dict(bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>",
                     regex=[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", CL],
                     special=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
                     plain=["<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                            "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁outputs▁begin｜>",
                            "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"]),
    "gpt_oss": dict(bos="<|startoftext|>", eos="<|return|>", regex=[CL],
                    special=["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>",
                             "<|end|>", "<|message|>", "<|call|>"]),
}

WORDS = ("the model reads a line and answers it with care because words mean what they say here is some code for you "
         "def add(a, b): return a + b Grüße aus Köln, naïve café 你好世界 今天天气很好 Привет мир 😀 🎉 e\u0301 "
         "12 345 6789 \"quoted\" it's 'so' <b>bold</b> & more {\"a\": 1} [x] \\n literal tab\there").split(" ")


def text(rng, least=0, most=30):
    out = " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))
    kind = rng.random()
    if kind < 0.08:
        return ""
    if kind < 0.2:
        out = "\n" * rng.randint(0, 3) + "  " * rng.randint(0, 2) + out + rng.choice(["\n", "  ", "\n\n", ""])
    if kind > 0.9:
        out = out.replace(" ", "\n", 3)
    return out


TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a place",
     "parameters": {"type": "object", "properties": {
         "city": {"type": "string", "description": "Name of the place"},
         "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
         "days": {"type": "integer", "default": 3}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "search", "description": "Looks “things” up",
     "parameters": {"type": "object", "properties": {
         "query": {"type": "array", "items": {"type": "string"}},
         "filter": {"type": "object", "properties": {"lang": {"type": "string"}, "year": {"type": ["integer", "null"]}},
                    "required": ["lang"]},
         "deep": {"type": "boolean"}, "limit": {"oneOf": [{"type": "number"}, {"type": "string"}]}},
         "required": ["query"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]


def arguments(rng):
    return rng.choice([{"city": rng.choice(["Köln", "Paris", "東京", "a \"b\""]), "days": rng.randint(-2, 9)}, {},
                       {"query": ["x", text(rng, 1, 4)], "deep": True, "limit": 2.5, "filter": {"lang": None}}])


def conversation(rng):
    messages, tools = [], None
    kind = rng.choice(["single", "multi", "multi", "system", "tools", "tools", "reasoning", "reasoning", "mixed"])
    if kind in ("system", "mixed") or rng.random() < 0.3:
        messages.append({"role": "system", "content": text(rng, 1, 15) or "Be brief."})
    if kind in ("tools", "mixed"):
        tools = rng.sample(TOOLS, rng.randint(1, len(TOOLS)))
    for _ in range(1 if kind == "single" else rng.randint(1, 4)):
        messages.append({"role": "user", "content": text(rng, 1)})
        if tools:
            for _ in range(rng.randint(0, 2)):
                call = {"id": "".join(rng.choice("abcdefghij0123456789") for _ in range(9)), "type": "function",
                        "function": {"name": rng.choice(tools)["function"]["name"], "arguments": arguments(rng)}}
                turn = {"role": "assistant", "content": None, "tool_calls": [call]}
                if rng.random() < 0.3:
                    turn["content"] = text(rng, 1, 5)
                elif rng.random() < 0.4:
                    turn["reasoning_content"] = text(rng, 1, 8) or "hm"
                messages.append(turn)
                messages.append({"role": "tool", "tool_call_id": call["id"],
                                 "content": rng.choice([json.dumps(arguments(rng), ensure_ascii=False), text(rng, 0, 8)])})
        answer = {"role": "assistant", "content": text(rng)}
        if kind in ("reasoning", "mixed") and rng.random() < 0.7:
            if rng.random() < 0.3:
                answer["content"] = "<think>\n" + text(rng, 1, 8) + "\n</think>\n\n" + answer["content"]
            else:
                answer["reasoning_content"] = text(rng, 0, 10)
        messages.append(answer)
    if rng.random() < 0.1 and messages[-1]["role"] == "assistant" and len(messages) > 1:
        messages.append({"role": "user", "content": text(rng, 1, 5)})
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}


def corpus():
    rng = random.Random(1)
    return [text(rng, 5, 60) for _ in range(200)] + [json.dumps(TOOLS)] * 3


def make_tokenizer(family, folder):
    f = FAMILIES[family]
    if f.get("sentencepiece"):
        tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
        trainer = trainers.BpeTrainer(vocab_size=460, special_tokens=[AddedToken(t, normalized=False, special=True) for t in f["special"]]
                                      + ["<0x%02X>" % b for b in range(256)], show_progress=False)
        tok.train_from_iterator(corpus(), trainer)
        # Bytes are ordinary pieces, no added tokens.
        data = json.loads(tok.to_str())
        data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
        tok = Tokenizer.from_str(json.dumps(data))
    else:
        tok = Tokenizer(models.BPE())
        if f.get("nfc"):
            tok.normalizer = normalizers.NFC()
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r), "isolated") for r in f["regex"]] + [pre_tokenizers.ByteLevel(False, use_regex=False)])
        tok.decoder = decoders.ByteLevel()
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
        tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=380, show_progress=False,
                                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in f["special"]])
        tok.add_tokens([AddedToken(t, normalized=False, special=False) for t in f.get("plain", [])])
    tok.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": f["bos"], "eos_token": f["eos"]}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as out:
        json.dump(config, out, ensure_ascii=False)
        out.write("\n")


def without_marks(template):
    return re.sub(r"\{%-? *(end)?generation *-?%\}", lambda m: m.group(0).replace("{%", "{#").replace("%}", "#}"), template)


class Oracle:
    def __init__(self, folder):
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        with open(os.path.join(folder, "chat_template.jinja")) as f:
            self.marked = f.read()
        self.plain = without_marks(self.marked)

    def __call__(self, item):
        call = dict(conversation=copy.deepcopy(item["messages"]), tools=copy.deepcopy(item.get("tools")))
        try:
            marked = self.tokenizer.apply_chat_template(**call, chat_template=self.marked, return_dict=True,
                                                        return_assistant_tokens_mask=True)
        except Exception as error:
            return {"error": str(error)}
        out = {"text": self.tokenizer.apply_chat_template(**call, chat_template=self.plain, tokenize=False),
               "ids": marked["input_ids"], "mask": marked["assistant_masks"],
               "prompt": self.tokenizer.apply_chat_template(**call, chat_template=self.plain, tokenize=False, add_generation_prompt=True),
               "prompt_ids": self.tokenizer.apply_chat_template(**call, chat_template=self.plain, add_generation_prompt=True)["input_ids"]}
        assert out["text"] == self.tokenizer.apply_chat_template(**call, chat_template=self.marked, tokenize=False)
        return out


def fnv(numbers):
    h = 0xcbf29ce484222325
    for n in numbers:
        for shift in (0, 8, 16, 24):
            h = (h ^ (n >> shift & 255)) * 0x100000001b3 & (1 << 64) - 1
    return "%016x" % h


def runs(mask):
    """[first, one past the last] of every run of ones, in one list."""
    out = []
    for i, m in enumerate(mask + [0]):
        if m != (i > 0 and mask[i - 1] == 1):
            out.append(i)
    return out


def fixtures(folder):
    rng = random.Random(7)
    items = []
    oracles = {}
    for family in FAMILIES:
        make_tokenizer(family, os.path.join(folder, family))
        oracles[family] = Oracle(os.path.join(folder, family))
    while len(items) < 200:
        item = conversation(rng)
        made = {family: oracle(item) for family, oracle in oracles.items()}
        if any("error" in m for m in made.values()):
            print([m.get("error") for m in made.values()], item)
            continue
        items.append((item, made))
    with open(os.path.join(folder, "conversations.jsonl"), "w") as out:
        for item, _ in items:
            out.write(json.dumps(item, ensure_ascii=False) + "\n")
    for family in FAMILIES:
        with open(os.path.join(folder, family, "expected.jsonl"), "w") as out:
            for _, made in items:
                m = made[family]
                out.write(json.dumps({"text": fnv(m["text"].encode()), "count": len(m["ids"]), "ids": fnv(m["ids"]),
                                      "mask": runs(m["mask"]), "prompt": fnv(m["prompt_ids"])}) + "\n")


def compare(cli, folder, count, seed):
    process = subprocess.Popen([cli], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    work = tempfile.mkdtemp()
    failed = 0
    for family in FAMILIES:
        source = os.path.join(folder, family)
        oracle = Oracle(source)
        folders = {}
        for form, template in (("marked", oracle.marked), ("plain", oracle.plain)):
            folders[form] = os.path.join(work, family + "_" + form)
            shutil.copytree(source, folders[form])
            with open(os.path.join(folders[form], "chat_template.jinja"), "w") as out:
                out.write(template)
        rng = random.Random(seed)
        compared = tokens = counted = 0
        for _ in range(count):
            item = conversation(rng)
            want = oracle(item)
            for form in folders:
                process.stdin.write(json.dumps({"folder": folders[form], "now": NOW, **item}, ensure_ascii=False) + "\n")
                process.stdin.flush()
                got = json.loads(process.stdout.readline())
                bad = [key for key in ("text", "ids", "mask", "prompt", "prompt_ids") if want.get(key) != got.get(key)]
                if bad or ("error" in want) != ("error" in got):
                    failed += 1
                    if failed < 4:
                        print("DIFFERENT", family, form, bad, json.dumps(item, ensure_ascii=False), want, got, sep="\n  ")
            if "error" not in want:
                compared += 1
                tokens += len(want["ids"])
                counted += sum(want["mask"])
        print(f"{family}: {compared} conversations of {count}, {tokens} ids, {counted} of them count, with and without marks")
    shutil.rmtree(work)
    print("all the same" if failed == 0 else f"{failed} differ")
    return failed != 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixtures")
    parser.add_argument("--cli")
    parser.add_argument("--data", default="tests/data/template_data")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=11)
    a = parser.parse_args()
    if a.fixtures:
        fixtures(a.fixtures)
    if a.cli:
        sys.exit(compare(a.cli, a.data, a.count, a.seed))


if __name__ == "__main__":
    main()
