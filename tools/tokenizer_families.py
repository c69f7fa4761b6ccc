"""Tokenizers written like those of published model families, for tools/tokenizer_parity.py.

Each has the normalizer, pre-tokenizer, post-processor, decoder and pattern of its family, as published; the vocabulary is
trained here, small. FAMILIES maps a name to a function from Models to a Hugging Face Tokenizer.
"""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2_SPECIAL = "<|endoftext|>"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + TAIL
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+" + TAIL
DEEPSEEK_V3 = ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
               "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
               "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
# The published class names every cased letter block; these are its first and last.
DEEPSEEK_V2 = ["[\r\n]", "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᲐ-ᲺᲽ-Ჿᴀ-ᴫḀ-ἕﬀ-ﬆＡ-Ｚａ-ｚ𐐀-𐑏𞤀-𞥃]+",
               "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+"]
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]*[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]+" + CONTRACTIONS + "?"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]+[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]*" + CONTRACTIONS + "?"
O200K = "|".join([CASED % ("", ""), UPPER % ("", ""), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+"]) + TAIL
NOT_HAN = (r"&&[^\p{Han}]",) * 2
KIMI = "|".join([r"[\p{Han}]+", CASED % NOT_HAN, UPPER % NOT_HAN, r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                 r"\s*[\r\n]+"]) + TAIL
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
          r"|\s*[\r\n]|\s+(?!\S)|\s")
BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + TAIL)
EXAONE_MOE = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
              + TAIL)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
COHERE_DIGITS = r"\d{1,3}(?=(?:\d{3})*\b)"

ADDED = [AddedToken("MASK", lstrip=True, special=True), AddedToken("[X]", rstrip=True, single_word=True),
         AddedToken("<pad>", special=True), AddedToken("word", single_word=True, normalized=True),
         AddedToken("é", normalized=True), AddedToken("<|im_start|>", special=True)]
HARMONY = [AddedToken(t, special=True) for t in ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")]
TOOLS = [AddedToken(t, special=True) for t in ("<|im_user|>", "<|im_middle|>", "<|tool_calls_section_begin|>",
                                               "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "[EOS]")]


class Models:
    """The vocabularies, trained on pieces of forty characters: merges run across words, digits and spaces, so that a text cut
    in another place gets other ids. Families of one kind share one."""

    def __init__(self, sample):
        self.sample, self.made = sample, {}

    def get(self, kind):
        if kind not in self.made:
            tokenizer = Tokenizer(models.BPE())
            tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(40)
            options = {"special_tokens": ["<unk>", "<s>", "</s>"], "limit_alphabet": 1200}
            if kind == "bytes":
                tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.FixedLength(40), SPELL])
                options = {"special_tokens": [GPT2_SPECIAL], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
            if kind == "marks":
                tokenizer.normalizer = normalizers.Replace(" ", "▁")
                options["special_tokens"] += [f"<0x{b:02X}>" for b in range(256)]
            if kind == "words":
                tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
            tokenizer.train_from_iterator(self.sample, trainers.BpeTrainer(vocab_size=8000, show_progress=False, **options))
            data = json.loads(tokenizer.to_str())
            data["normalizer"] = data["pre_tokenizer"] = None
            data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
            self.made[kind] = data
        return json.loads(json.dumps(self.made[kind]))

    def tokenizer(self, kind, **model):
        data = self.get(kind)
        data["model"].update(model)
        return Tokenizer.from_str(json.dumps(data))


def byte_level(pre_tokenizer, normalizer=None, ignore_merges=False, template=False, added=ADDED):
    def build(base):
        tokenizer = base.tokenizer("bytes", ignore_merges=ignore_merges)
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens(added)
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        if template:
            tokenizer.post_processor = processors.Sequence([
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single=f"{GPT2_SPECIAL} $A", special_tokens=[(GPT2_SPECIAL, 0)])])
        return tokenizer
    return build


def byte_fallback(style):
    """SentencePiece-like: a normalizer and no pre-tokenizer ('llama', 'phi', 'ernie'), a Metaspace ('metaspace', 'first',
    'whole') or a Split that never finds its space ('gemma')."""
    def build(base):
        tokenizer = base.tokenizer("marks", unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        marks = normalizers.Replace(" ", "▁")
        spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if style in ("llama", "phi"):
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), marks])
            tokenizer.decoder = decoders.Sequence(spaces + [decoders.Strip(" ", 1, 0)])
        elif style in ("gemma", "ernie"):
            tokenizer.normalizer = marks
            if style == "gemma":
                tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
            tokenizer.decoder = decoders.Sequence(spaces)
        else:
            scheme = "always" if style == "metaspace" else "first"
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=style != "whole")
            tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        tokenizer.add_tokens(ADDED[:3])
        if style == "phi":
            tokenizer.add_special_tokens([AddedToken(t, rstrip=True, normalized=False, special=True)
                                          for t in ("<|assistant|>", "<|user|>", "<|im_start|>")])
        return tokenizer
    return build


def words(normalizer, pre_tokenizer):
    """Characters instead of bytes, with an unknown token and no decoder."""
    def build(base):
        tokenizer = base.tokenizer("words", unk_token="<unk>")
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.add_tokens(ADDED[:3])
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
        return tokenizer
    return build


def bytes_first(base):
    """ByteLevel as a normalizer: every later step sees GPT-2's alphabet."""
    tokenizer = base.tokenizer("bytes")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.ByteLevel()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("Ġ", "merged_with_next")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(ADDED)
    return tokenizer


def neox(base):
    tokenizer = byte_level(PLAIN, normalizers.NFC(), added=[])(base)
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    tokenizer.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True)] + ADDED)
    return tokenizer


SPELL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False)


def isolated(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def chain(*steps):
    return pre_tokenizers.Sequence(list(steps))


FAMILIES = {
    "gpt2": byte_level(PLAIN),
    "gpt2_prefix": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.NFKC()),
    "llama3": byte_level(chain(*isolated(LLAMA3), SPELL), ignore_merges=True, template=True),
    "qwen": byte_level(chain(*isolated(QWEN), SPELL), normalizers.NFC()),
    "deepseek": byte_level(chain(*isolated(*DEEPSEEK_V3), SPELL)),
    "digits": byte_level(chain(pre_tokenizers.Digits(True), PLAIN), normalizers.NFD()),
    "llama2": byte_fallback("llama"),
    "metaspace": byte_fallback("metaspace"),
    "metaspace_first": byte_fallback("first"),
    "mixtral_new": byte_fallback("whole"),
    "phi_moe": byte_fallback("phi"),
    "ernie": byte_fallback("ernie"),
    "gemma": byte_fallback("gemma"),
    "qwen35": byte_level(chain(*isolated(QWEN35), SPELL), normalizers.NFC()),
    "deepseek_v2": byte_level(chain(*isolated(*DEEPSEEK_V2), pre_tokenizers.Digits(True), SPELL), normalizers.Sequence([])),
    "gpt_oss": byte_level(chain(*isolated(O200K), SPELL), ignore_merges=True, added=HARMONY),
    "kimi_json": byte_level(chain(*isolated(KIMI), SPELL), added=TOOLS),
    "olmoe_neox": neox,
    "granite": byte_level(chain(pre_tokenizers.Digits(True), PLAIN)),
    "bailing": byte_level(chain(*isolated(BAILING), SPELL), normalizers.NFC()),
    "exaone_moe": byte_level(chain(*isolated(EXAONE_MOE), SPELL), normalizers.NFC()),
    "cohere_moe": byte_level(chain(*isolated(COHERE_DIGITS, O200K), SPELL), normalizers.NFC()),
    "bloom": byte_level(chain(*isolated(BLOOM), SPELL)),
    "falcon": byte_level(chain(pre_tokenizers.Punctuation("contiguous"), PLAIN, pre_tokenizers.Digits(False),
                               pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"))),
    "bytes_first": bytes_first,
    "words": words(normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents(),
                                         normalizers.Strip()]), pre_tokenizers.Whitespace()),
    "words_split": words(normalizers.Strip(right=False), chain(pre_tokenizers.WhitespaceSplit(),
                                                               pre_tokenizers.Punctuation("merged_with_previous"))),
}
