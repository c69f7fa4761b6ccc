"""Single steps of a tokenizer.json and what Hugging Face's `tokenizers` makes of them, for the tests.

The vocabulary is the 256 bytes, and a ByteLevel behind the step puts a space before every piece: the ids, read as bytes, are
the text with its cuts.
"""
import json

from tokenizers import Tokenizer

PROBES = ["  a b  \t1²3４५ x!!¿?--x  ", "é1é22 é", "don't 12,345.67 DON'T", "\u3000 中文ab中 \u0301a\u0301\n", "ＡBC_ſs…\u200dx 𝟚Ⅷ", "aab-b--aab",
          "\U0001171e\u166d\U000111c9\U00011de0\u1c89", " <|x|>"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
MARKED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern if isinstance(pattern, dict) else {"Regex": pattern}, "behavior": behavior, "invert": invert}


def steps():
    """Pairs of a normalizer and a list of pre-tokenizers."""
    for behavior in BEHAVIORS:
        yield None, [{"type": "Punctuation", "behavior": behavior}]
        for invert in (False, True):
            yield None, [split(r"[\p{Nd}\p{P}]+", behavior, invert)]
            yield None, [split({"String": "-"}, behavior, invert)]
            yield None, [split({"String": ""}, behavior, invert)]
    for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Punctuation"):
        yield None, [{"type": kind}]
    for individual in (False, True):
        yield None, [{"type": "Digits", "individual_digits": individual}]
    yield None, [{"type": "CharDelimiterSplit", "delimiter": "é"}]
    yield None, [{"type": "FixedLength", "length": 3}]
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
            yield None, [metaspace]
            yield None, [{"type": "WhitespaceSplit"}, metaspace]
    yield None, [{"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}]
    yield None, [BYTE_LEVEL, split("Ġ|[\u00c3\u00c4]")]
    yield None, [{"type": "Sequence", "pretokenizers": [BYTE_LEVEL, {"type": "Punctuation"}]}, BYTE_LEVEL]
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel"):
        yield {"type": form}, []
    for left in (False, True):
        for right in (False, True):
            yield {"type": "Strip", "strip_left": left, "strip_right": right}, []
    for pattern in (r"\w", r"[\w]", r"\W", r"[\W1]", r"[^\Wa]", r"\d", r"\D", r"\s", r"[^\S\n]", r"a\b", r"a\B", r"\p{Mn}", r"\P{L}",
                    r"[\p{Lu}\p{Lo}\p{M}&&[^\p{Han}]]+", r"[^\p{L}&&[^\p{Han}]]+", r" ?[^(\s|[.,!?…])]+", r"[\p{L}&&[^a]&&\p{Latin}]",
                    r"(?i)B|S", r"a(?i)B|n", r"(?i:'T|k)", r"(?<n>a)+b", r"\d{1,2}+", r"(?:a){2}?b", r"a{,1}b", r"[\u4e00-\u9fff\x{e9}]",
                    r"\d{1,3}(?=(?:\d{3})*\b)", r"(?=(\d{3})+(?!\d))", r"\s+$", r"^.", r"[+--a]", r"\A."):
        yield None, [split(pattern)]


def alphabet():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(other)) for b in range(256)]


def tokenizer_of(normalizer, pre_tokenizers):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers + [MARKED]}, "post_processor": None,
            "decoder": None, "model": {"type": "BPE", "vocab": {c: b for b, c in enumerate(alphabet())}, "merges": []}}


def write_steps(path):
    rows = []
    for normalizer, pre_tokenizers in steps():
        tokenizer = Tokenizer.from_str(json.dumps(tokenizer_of(normalizer, pre_tokenizers)))
        found = [bytes(tokenizer.encode(text).ids).decode() for text in PROBES]
        rows.append({"normalizer": normalizer, "pre_tokenizers": pre_tokenizers, "found": found})
    with open(path, "w") as f:
        f.write('{"texts":' + json.dumps(PROBES, ensure_ascii=False) + ',"steps":[\n')
        f.write(",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows) + "\n]}\n")
