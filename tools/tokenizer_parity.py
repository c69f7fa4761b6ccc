#!/usr/bin/env python3
"""Compares Pleat's tokenizers with the libraries they must agree with, id by id, and prints both speeds.

    python -m venv VENV && VENV/bin/pip install tokenizers sentencepiece tiktoken mistral-common dashscope
    ninja -C build/cpu tokenizer_cli
    VENV/bin/python tools/tokenizer_parity.py --cli build/cpu/tokenizer_cli --work FOLDER [--only NAME]
    VENV/bin/python tools/tokenizer_parity.py --cli build/cpu/tokenizer_cli --work FOLDER --file tokenizer.json  # one of yours
    VENV/bin/python tools/tokenizer_parity.py --fixtures tests/data/tokenizer_data   # small files for the tests

The text (at least 20 MB) is made from what a Debian system has: message catalogues in many languages, manual pages,
headers and Python sources, plus generated parts: CJK, emoji, every code point, a million '^', long runs, broken UTF-8.
The vocabularies come from the PyPI packages above or are trained here with Hugging Face's `tokenizers`. Speeds are one
thread each, in processor time over the ordinary text (languages and code); theirs is the fastest call the library has.
"""
import argparse
import glob
import gettext
import gzip
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tiktoken
import tiktoken.load
import tokenizers
from tokenizers import Tokenizer

from tokenizer_families import CL100K, FAMILIES, KIMI, LLAMA3, Models, O200K, QWEN
from tokenizer_steps import write_steps


# ---- text ----------------------------------------------------------------------------------------------------------

def catalogue_text(language, limit):
    out, size = [], 0
    for path in sorted(glob.glob(f"/usr/share/locale/{language}/LC_MESSAGES/*.mo") +
                       glob.glob(f"/usr/share/vim/vim*/lang/{language}/LC_MESSAGES/*.mo")):
        try:
            with open(path, "rb") as f:
                catalogue = gettext.GNUTranslations(f)._catalog
        except Exception:
            continue
        text = "\n".join(v for v in catalogue.values() if isinstance(v, str)).encode()
        out.append(text)
        size += len(text)
        if size >= limit:
            break
    return b"\n\n".join(out)[:limit]


def file_text(patterns, limit):
    out, size = [], 0
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            try:
                data = gzip.open(path, "rb").read() if path.endswith(".gz") else open(path, "rb").read()
            except OSError:
                continue
            out.append(data[:200_000])
            size += len(out[-1])
            if size >= limit:
                return b"\n".join(out)[:limit]
    return b"\n".join(out)[:limit]


def generated(rng):
    def cjk(n):
        return "".join(chr(rng.choice([rng.randrange(0x4E00, 0x9FA5), rng.randrange(0x3041, 0x30FF),
                                       rng.randrange(0xAC00, 0xD7A3), 0x3002, 0xFF0C, 0x20000 + rng.randrange(40000),
                                       0x31350 + rng.randrange(4000)]))
                       for _ in range(n))
    emoji = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "🩷", "🫨", "❤️", "🫩", "☕", "✨"]
    parts = {
        "cjk": "\n".join(cjk(rng.randrange(5, 60)) for _ in range(12000)),
        "emoji": "".join(rng.choice(emoji + [" ", "x ", "\n", "! "]) for _ in range(150000)),
        "every": "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000),
        "every_spaced": " ".join(chr(c) + chr(c) + "a" for c in range(0x3100) if not 0xD800 <= c < 0xE000),
        "carets": "^" * 1_000_000,
        "spaces": " " * 100_000 + "x" + "\t" * 50_000 + "\r\n" * 20_000 + "\n " * 20_000 + "\u180e \u200b\u0085",
        "letters": "a" * 200_000 + "A" * 200_000 + "ab" * 50_000 + "9" * 100_000,
        "quotes": "".join(rng.choice(["'s", "'S", "'ll", "'LL", "'ve", "'ſ", "\u2019s", " ", "I", "don't", "'re", "D'"])
                          for _ in range(60000)),
        "marks": "".join(rng.choice(["e\u0301", "é", "\u0301", "ﬁ", "Å", "A\u030a", "각", "각", "²", "½", "ß", "İ", " "])
                         for _ in range(60000)),
        "specials": "".join(rng.choice(["<|endoftext|>", "<|im_start|>", "  ", "\n", "hello", "<s>", "</s>", "▁", "<pad>",
                                        "MASK", "aMASK", "<|channel|>", "<|im_user|>", "<|tool_call_begin|>", "[EOS]", "<|assistant|>", "   ", "<0x41>", "<|endoftext", "word", " [X] ", "é", "<unk>"])
                            for _ in range(80000)),
    }
    whitespace = [chr(c) for c in (9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, 0x180E, 0x2003, 0x2028, 0x202F, 0x3000)]
    parts["whitespace"] = "".join(rng.choice(whitespace + ["a", "1", "!"]) for _ in range(200000))
    alphabet = [chr(rng.randrange(0x20, 0x2FF)) for _ in range(40)] + list("aeiou 12'\n") + ["中", "😀", "ñ", "▁"]
    parts["random"] = "".join(rng.choice(alphabet) for _ in range(700000))
    return {name: text.encode() for name, text in parts.items()}


def broken(rng, text):
    data = bytearray(text)
    for _ in range(len(data) // 20):
        data[rng.randrange(len(data))] = rng.choice([0x80, 0xC0, 0xC3, 0xE2, 0xED, 0xA0, 0xF0, 0xF4, 0x90, 0xFF, 0xE0, 0])
    return bytes(data) + b"\xf0\x9f\x98"


def make_documents(folder, megabytes):
    """All text there is, or about so many megabytes: what is generated, and of each language and program a part."""
    path = os.path.join(folder, "documents.bin")
    rng = random.Random(7)
    lib = os.path.dirname(os.__file__)
    texts = {}
    for language, limit in (("de", 3_000_000), ("fr", 3_000_000), ("zh_CN", 3_000_000), ("ja", 800_000),
                            ("ru", 800_000), ("ar", 400_000), ("hi", 400_000), ("th", 300_000), ("ko", 400_000)):
        texts[language] = catalogue_text(language, limit)
    texts["english"] = file_text(["/usr/share/vim/vim*/doc/*.txt", "/usr/share/doc/**/*.gz", "/usr/share/perl/**/*.pod",
                                  "/usr/share/man/man[1-8]/*.gz"], 5_000_000)
    texts["python"] = file_text([lib + "/*.py", lib + "/*/*.py"], 3_000_000)
    texts["c"] = file_text(["/usr/include/*.h", "/usr/include/*/*.h", "/usr/include/c++/**/*"], 2_000_000)
    made = generated(rng)
    if megabytes:
        share = max(0.05, (megabytes * 1.02e6 - sum(map(len, made.values())) - 1.3e6) / sum(map(len, texts.values())))
        texts = {name: text[:int(share * len(text))] for name, text in texts.items()}
    texts.update(made)
    texts["broken_de"] = broken(rng, texts["de"][:500_000])
    texts["broken_zh"] = broken(rng, texts["zh_CN"][:500_000])
    texts["noise"] = rng.randbytes(300_000)
    documents, summary = [], {}
    for name, text in texts.items():
        summary[name] = len(text)
        if name in ("carets", "spaces", "letters", "every"):
            documents.append((name, text))
            continue
        at = 0
        while at < len(text):
            size = rng.choice([200, 2000, 8000, 8000, 30000, 200000])
            documents.append((name, text[at:at + size]))  # cuts inside a character happen: broken on purpose
            at += size
    with open(path, "wb") as f:
        for _, text in documents:
            f.write(struct.pack("<I", len(text)) + text)
    return path, documents, summary


# ---- tokenizers ----------------------------------------------------------------------------------------------------

def hf_case(name, folder, base):
    path = os.path.join(folder, name + ".tokenizer.json")
    if not os.path.exists(path):
        FAMILIES[name](base).save(path)
    return file_case(path)


def file_case(path):
    tokenizer = Tokenizer.from_file(path)

    def encode(texts):
        return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    return path, "-", encode, lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def package_cases(folder):
    import dashscope
    import mistral_common
    import sentencepiece
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    cases = {}
    data = os.path.join(os.path.dirname(mistral_common.__file__), "data")
    for path in sorted(glob.glob(data + "/*.model.v*")):
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        cases["sp:" + os.path.basename(path)] = (path, "-", lambda texts, p=processor: [p.encode(t) for t in texts],
                                                 lambda ids, p=processor: p.decode(ids))
    for path in sorted(glob.glob(data + "/tekken*.json"))[-1:]:
        tekken = Tekkenizer.from_file(path)
        cases["tekken"] = (path, "-", lambda texts: [tekken.encode(t, bos=False, eos=False) for t in texts], None)
    path = os.path.join(os.path.dirname(dashscope.__file__), "resources", "qwen.tiktoken")
    ranks = tiktoken.load.load_tiktoken_bpe(path)
    for family, pattern in (("qwen", QWEN), ("cl100k", CL100K), ("o200k", O200K), ("o200k_harmony", O200K), ("llama3", LLAMA3)):
        encoding = tiktoken.Encoding(family, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        # The ranks are Qwen's; the special tokens of other families would collide with them.
        link = os.path.join(folder, f"{family}.tiktoken")
        shutil.copyfile(path, link)
        if family in ("cl100k",):
            lines = [line for line in open(link) if int(line.split()[1]) < 100000]
            open(link, "w").writelines(lines)
            cut = {t: r for t, r in ranks.items() if r < 100000}
            encoding = tiktoken.Encoding(family, pat_str=pattern, mergeable_ranks=cut, special_tokens={})
        cases["tiktoken:" + family] = (link, family, lambda texts, e=encoding: [e.encode_ordinary(t) for t in texts],
                                       lambda ids, e=encoding: e.decode(ids, errors="replace"))
    cases["tiktoken:kimi"] = kimi_case(folder, ranks, path)
    return cases


KIMI_NAMES = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", None, "<|im_start|>", "<|endoftext|>", None, "[EOT]",
              "<|im_system|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"]


def kimi_settings(num_ranks):
    """A tokenizer_config.json like Kimi's, and all special tokens it leads to."""
    named = {num_ranks + i: name for i, name in enumerate(KIMI_NAMES) if name}
    settings = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
                "added_tokens_decoder": {str(i): {"content": name, "special": True} for i, name in named.items()}}
    return settings, {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(num_ranks, num_ranks + 256)}


def kimi_case(folder, ranks, path):
    """A folder as Kimi publishes it: ranks and settings, no tokenizer.json. Text makes special tokens."""
    settings, specials = kimi_settings(len(ranks))
    os.makedirs(os.path.join(folder, "kimi"), exist_ok=True)
    shutil.copyfile(path, os.path.join(folder, "kimi", "tiktoken.model"))
    json.dump(settings, open(os.path.join(folder, "kimi", "tokenizer_config.json"), "w"))
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=specials)
    return (os.path.join(folder, "kimi"), "-", lambda texts: [encoding.encode(t, allowed_special="all") for t in texts],
            lambda ids: encoding.decode(ids, errors="replace"))


# ---- fixtures for the tests ----------------------------------------------------------------------------------------

FIXTURE_TEXT = ("The quick brown fox can't jump over 12345 lazy dogs; they'll try again.\n\n"
                "Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Übermut.\n"
                "Le renard brun, déjà vu, naïve façade; l'été à la plage.\t\r\n"
                "int main() { return x[i] += 42; }  // 中文字符和日本語 😀 ▁▁\n" * 3)
FIXTURE_PROBES = [
    b"", b" ", b"a", FIXTURE_TEXT[:len(FIXTURE_TEXT) // 3].encode(), "Hello  world!\n\n  it's 2024\u00a0x".encode(), "été e\u0301 ﬁ ² Å".encode(),
    b"<|endoftext|>the fox<|endoftext|>  MASK  the [X]  word swords <s>x</s>", "中文😀👩\u200d👩 🩷🫨\U00031350".encode(),
    b"^" * 150, "<|channel|>a<|im_user|>b [EOS] MASK\u3000x  ÀÉ 12345,6789 (a.b) don't DON'T".encode(), b"  \n \t\n  the   dog  ", b"broken \xf0\x9f\x98 \xff\xc3( \xed\xa0\x80 \xe2\x82", b"they'LL we'Ve I'\xc5\xbf",
    "a\u180eb\u0085c\u2028d".encode(), bytes(range(1, 128)), "<0x41> <unk> ▁the▁ ▁".encode(), b"\0\0x",
]


NUM_OWN_FILES = 9  # gpt2 to metaspace_first


def make_fixtures(folder):
    import base64
    import sentencepiece
    os.makedirs(folder, exist_ok=True)
    rows = []

    def add(name, family, encode, framed, decode):
        cases, whole = [], framed("a")
        at = next(i for i in range(len(whole)) if whole[i:i + len(encode("a"))] == encode("a"))
        before, after = whole[:at], whole[at + len(encode("a")):]
        for probe in FIXTURE_PROBES:
            text = probe.decode("utf-8", errors="replace")
            ids = encode(text)
            assert framed(text) == before + ids + after
            cases.append({"ids": ids} if decode(ids) == text else {"ids": ids, "decoded": decode(ids)})
        rows.append({"file": name, "family": family, "before": before, "after": after, "cases": cases})

    base = Models([FIXTURE_TEXT] * 2)

    def small(style):
        data = json.loads(FAMILIES[style](base).to_str())
        keep = 440 if "<0x00>" in data["model"]["vocab"] else 340
        kept = {t: i for t, i in data["model"]["vocab"].items() if i < keep}
        kept.update({t["content"]: t["id"] for t in data["added_tokens"] if t["content"] in data["model"]["vocab"]})
        merges = [m for m in data["model"]["merges"] if m[0] in kept and m[1] in kept and "".join(m) in kept]
        size = max(kept.values()) + 1
        for token in data["added_tokens"]:
            if token["content"] not in kept:
                token["id"], size = size, size + 1
        data["model"]["vocab"], data["model"]["merges"] = kept, merges
        if style == "gpt2":
            data["model"]["merges"] = [" ".join(m) for m in merges]
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    # Some are files of their own; the others stand in one file, each vocabulary once.
    shared = {"models": {}, "families": {}}
    for number, style in enumerate(FAMILIES):
        text = small(style)
        tokenizer = Tokenizer.from_str(text)
        name = style + ".json" if number < NUM_OWN_FILES else style
        if number < NUM_OWN_FILES:
            open(os.path.join(folder, name), "w").write(text + "\n")
        else:
            data = json.loads(text)
            model = {key: data["model"].pop(key) for key in ("vocab", "merges")}
            data["vocabulary"] = hashlib.sha256(json.dumps(model).encode()).hexdigest()[:8]
            shared["models"][data["vocabulary"]] = model
            shared["families"][style] = data
        add(name, "", lambda t: tokenizer.encode(t, add_special_tokens=False).ids, lambda t: tokenizer.encode(t).ids,
            lambda ids: tokenizer.decode(ids, skip_special_tokens=False))
    with open(os.path.join(folder, "families.json"), "w") as f:
        f.write('{"models":' + json.dumps(shared["models"], ensure_ascii=False, separators=(",", ":")) + ',"families":{\n' + ",\n".join(
            json.dumps(k) + ":" + json.dumps(v, ensure_ascii=False, separators=(",", ":")) for k, v in shared["families"].items()) + "\n}}\n")
    ranks = {bytes([b]): b for b in range(256)}
    for token, _ in sorted(json.loads(small("qwen"))["model"]["vocab"].items(), key=lambda item: item[1]):
        unprintable = {chr(c): b for b, c in zip(range(256), byte_characters())}
        if all(c in unprintable for c in token):
            ranks.setdefault(bytes(unprintable[c] for c in token), len(ranks))
    with open(os.path.join(folder, "small.tiktoken"), "w") as f:
        f.writelines(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    for family, pattern in (("qwen", QWEN), ("cl100k", CL100K), ("o200k", O200K), ("llama3", LLAMA3)):
        encoding = tiktoken.Encoding(family, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        begin = [len(ranks)] if family == "llama3" else []
        add("small.tiktoken", family, encoding.encode_ordinary, lambda t: begin + encoding.encode_ordinary(t),
            lambda ids: encoding.decode(ids, errors="replace"))
    _, _, encode, decode = kimi_case(folder, ranks, os.path.join(folder, "small.tiktoken"))
    add("kimi", "", lambda t: encode([t])[0], lambda t: encode([t])[0], decode)
    write_steps(os.path.join(folder, "steps.json"))
    source = os.path.join(folder, "source.txt")
    open(source, "w").write(FIXTURE_TEXT)
    sentencepiece.SentencePieceTrainer.train(
        input=source, model_prefix=os.path.join(folder, "small"), vocab_size=420, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", character_coverage=0.99, minloglevel=2)
    os.remove(source)
    os.remove(os.path.join(folder, "small.vocab"))
    processor = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "small.model"))
    add("small.model", "", processor.encode, lambda t: processor.encode(t, add_bos=True), processor.decode)
    with open(os.path.join(folder, "cases.json"), "w") as f:
        f.write('{"texts":' + json.dumps([probe.hex() for probe in FIXTURE_PROBES]) + ',"tokenizers":[\n')
        f.write(",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows) + "\n]}\n")


def byte_characters():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = iter(range(256, 512))
    return [b if b in plain else next(other) for b in range(256)]


# ---- comparison ----------------------------------------------------------------------------------------------------

def read_ids(path):
    import array
    values = array.array("i")
    values.frombytes(open(path, "rb").read())
    out, start = [], 0
    values = values.tolist()
    for i, v in enumerate(values):
        if v == -1:
            out.append(values[start:i])
            start = i + 1
    return out


ORDINARY = {"de", "fr", "zh_CN", "ja", "ru", "ar", "hi", "th", "ko", "english", "python", "c"}


def compare(name, case, cli, documents_path, documents, folder):
    path, family, encode, decode = case
    ids_path, text_path = os.path.join(folder, "ids.bin"), os.path.join(folder, "decoded.bin")
    run = subprocess.run([cli, path, family, documents_path, ids_path, text_path], capture_output=True, text=True)
    if run.returncode != 0:
        print(f"| {name} | FAILED: {run.stderr.strip()} |")
        return False
    ours = json.loads(run.stdout)
    texts = [text.decode("utf-8", errors="replace") for _, text in documents]
    num_bytes = sum(len(t.encode()) for t in texts)
    ordinary = [i for i in range(len(documents)) if documents[i][0] in ORDINARY]
    start = time.process_time()
    theirs_ordinary = encode([texts[i] for i in ordinary])
    their_seconds = time.process_time() - start
    special = [i for i in range(len(documents)) if documents[i][0] not in ORDINARY]
    theirs_special = encode([texts[i] for i in special])
    theirs = dict(zip(ordinary + special, theirs_ordinary + theirs_special))
    ordinary_bytes = sum(len(texts[i].encode()) for i in ordinary)
    our_seconds = sum(ours["seconds"][i] for i in ordinary)
    mine = read_ids(ids_path)
    wrong = [i for i in range(len(documents)) if i >= len(mine) or mine[i] != theirs[i]]
    for i in wrong[:3]:
        a, b = (mine[i] if i < len(mine) else []), theirs[i]
        at = next((k for k in range(min(len(a), len(b))) if a[k] != b[k]), min(len(a), len(b)))
        print(f"  document {i} ({documents[i][0]}) differs at token {at} of {len(a)}/{len(b)}: {a[at:at + 5]} {b[at:at + 5]}")
        if decode:
            print(f"    theirs: {decode(b[max(0, at - 3):at + 5])!r}")
    decode_wrong = 0
    if decode:
        raw = open(text_path, "rb").read()
        at = 0
        for i in range(len(documents)):
            size, = struct.unpack_from("<I", raw, at)
            text = raw[at + 4:at + 4 + size].decode()
            at += 4 + size
            if documents[i][0] != "every" and text != decode(theirs[i]):
                decode_wrong += 1
                if decode_wrong < 3:
                    print(f"  document {i} ({documents[i][0]}) decodes differently: {text[:60]!r}")
    our_speed, their_speed = ordinary_bytes / our_seconds / 1e6, ordinary_bytes / their_seconds / 1e6
    good = not wrong and not decode_wrong
    print(f"| {name} | {num_bytes / 1e6:.1f} | {len(documents)} | {ours['tokens']} | "
          f"{'equal' if not wrong else str(len(wrong)) + ' documents differ'} | "
          f"{'equal' if not decode_wrong else str(decode_wrong) + ' differ'} | {our_speed:.1f} | {their_speed:.1f} | "
          f"{our_speed / their_speed:.1f} |", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cli")
    parser.add_argument("--work")
    parser.add_argument("--fixtures", help="write the tests' small files into this folder and stop")
    parser.add_argument("--only", help="run only the tokenizers whose name contains one of these, with commas between")
    parser.add_argument("--megabytes", type=float, help="compare on about so much text; everything otherwise")
    parser.add_argument("--file", help="compare this tokenizer.json alone, such as one of `pleat data train-tokenizer`")
    options = parser.parse_args()
    if options.fixtures:
        make_fixtures(options.fixtures)
        return
    if not options.cli or not options.work:
        parser.error("--cli and --work are needed")
    os.makedirs(options.work, exist_ok=True)
    documents_path, documents, summary = make_documents(options.work, options.megabytes)
    total = sum(summary.values())
    print("bytes of text:", summary, "together", total, "in", len(documents), "documents")
    if total < 20_000_000:
        sys.exit("this system has too little text for the comparison; 20 MB are needed")
    print("tokenizers", tokenizers.__version__, "tiktoken", tiktoken.__version__)
    print("| tokenizer | MB | documents | tokens | ids | texts | ours, MB/s | theirs, MB/s | times |\n" + "|---" * 9 + "|", flush=True)
    rng = random.Random(3)
    sample = [t.decode("utf-8", errors="replace")[:4000] for name, t in rng.sample(documents, min(900, len(documents)))
              if name not in ("every", "noise", "carets", "spaces", "letters", "random", "cjk")]
    if options.file:
        sys.exit(0 if compare(options.file, file_case(options.file), options.cli, documents_path, documents, options.work) else 1)
    base = Models(sample)
    cases = {name: (lambda name=name: hf_case(name, options.work, base)) for name in FAMILIES}
    cases.update({name: (lambda case=case: case) for name, case in package_cases(options.work).items()})
    good = True
    for name, make in cases.items():
        if options.only and not any(part == name if part in cases else part in name for part in options.only.split(",")):
            continue
        good = compare(name, make(), options.cli, documents_path, documents, options.work) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
