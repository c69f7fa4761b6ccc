// The language of chat templates: what it renders, what it refuses, and that nothing in a template's file can
// make it run without end or take the machine's memory. Expected texts are what Jinja prints.
#include <gtest/gtest.h>

#include "data/chat/json_value.h"
#include "data/data_support.h"
#include "data/template/template.h"

namespace pleat::data {
namespace {

constexpr const char* kValues = R"({
  "s": "Hello World", "n": 5, "f": 2.5, "nul": null, "yes": true, "l": [1, 2, 3],
  "d": {"b": 1, "a": "x"}, "u": "Größe 你好", "people": [{"name": "Bo", "age": 3}, {"name": "al", "age": 1}]})";

std::string rendered(const std::string& source, const TemplateLimits& limits = {}) {
  TemplateInput input;
  const TemplateValue values = value_from_json(kValues, "values");
  for (const auto& [name, value] : *values.map()) input.set(name, value, true);
  return ChatProgram(source, "t", limits).render(input, 0, false, 1760011200).bytes();
}

TEST(Template, Expressions) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 1 / 2 }} {{ 2 ** 10 }} {{ 1e16 }} {{ 0.1 + 0.2 }}",
       "3 -4 2 0.5 1024 1e+16 0.30000000000000004"},
      {"{{ nul }} {{ yes }} {{ l }} {{ d }} {{ (1,) }} {{ missing }}|",
       "None True [1, 2, 3] {'b': 1, 'a': 'x'} (1,) |"},
      {"{{ [\"it's\", 'q\"', 'é\t'] }}", "[\"it's\", 'q\"', 'é\\t']"},
      {"{{ s[1:4] }} {{ s[::-1] }} {{ u[-2:] }} {{ l[::-2] }} {{ l[-1] }}", "ell dlroW olleH 你好 [3, 1] 3"},
      {"{{ 'a' ~ 1 ~ none }} {{ 1 < n < 9 }} {{ 9 not in l }} {{ 'x' if n > 9 }}|", "a1None True True |"},
      {"{{ s.split('o', 1) }} {{ ' a  b '.split() }} {{ 'x.y.z'.rsplit('.', 1)[0] }}",
       "['Hell', ' World'] ['a', 'b'] x.y"},
      {"{{ u.upper() }} {{ '  x '.strip() }} {{ 'xxa'.lstrip('x') }} {{ 'ab'.replace('b', 'c') }}",
       "GRÖSSE 你好 x a ac"},
      {"{{ d.items() | list }} {{ d.get('z', 4) }} {{ d['a'] }} {{ people[0].name }} {{ 'b' in d }}",
       "[('b', 1), ('a', 'x')] 4 x Bo True"},
      {"{{ '%s-%03d-%.1f' % ('a', 7, f) }} {{ '{} {x}'.format(1, x=2) }}", "a-007-2.5 1 2"},
      {"{{ people | map(attribute='name') | join(', ') }} {{ people | selectattr('age', 'gt', 2) | list | "
       "length }}",
       "Bo, al 1"},
      {"{{ ['b', 'A'] | sort }} {{ l | sum }} {{ l | select('odd') | list }} {{ d | dictsort }}",
       "['A', 'b'] 6 [1, 3] [('a', 'x'), ('b', 1)]"},
      {"{{ d | tojson }} {{ u | tojson }} {{ l | tojson(indent=1) }} {{ '<' | tojson }}",
       "{\"b\": 1, \"a\": \"x\"} \"Größe 你好\" [\n 1,\n 2,\n 3\n] \"<\""},
      {"{{ n is odd }} {{ s is string }} {{ d is mapping }} {{ zz is defined }} {{ yes is integer }} {{ zz "
       "is iterable }}",
       "True True True False False True"},
      {"{{ zz | default('D') }} {{ '' | default('D', true) }} {{ '3.7' | int }} {{ 2.5 | round }} {{ 'a b' | "
       "title }}",
       "D D 3 2.0 A B"},
      {"{{ strftime_now('%Y-%m-%d') }} {{ range(1, 6, 2) | list }} {{ dict(d, a=2) }}",
       "2025-10-09 [1, 3, 5] {'b': 1, 'a': 2}"},
  };
  for (const auto& [source, want] : cases) EXPECT_EQ(rendered(source), want) << source;
}

TEST(Template, Statements) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% for x in l %}{{ loop.index }}{{ loop.last }}{{ loop.previtem }};{% else %}none{% endfor %}",
       "1False;2False1;3True2;"},
      {"{% for x in [] %}x{% else %}none{% endfor %}", "none"},
      {"{% for x in l if x != 2 %}{{ loop.length }}{{ x }}{% endfor %}", "2123"},
      {"{% for x in l %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% if x == 3 %}{% break %}{% endif "
       "%}{% endfor %}",
       "13"},
      {"{% set x = 1 %}{% for i in l %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "2221"},
      {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "7"},
      {"{% macro m(a, b='q') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(b=2) }}", "[1q][2]"},
      {"{% macro w() %}<{{ caller(3) }}>{% endmacro %}{% call(x) w() %}{{ x }}{% endcall %}", "<3>"},
      {"{% set b %}a{{ n }}{% endset %}{{ b | length }}{% filter upper %}x{{ b }}{% endfilter %}", "2XA5"},
      {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "b=1;a=x;"},
      {"{% raw %}{{ x }}{% endraw %}{# gone #}{% with a = 1 %}{{ a }}{% endwith %}", "{{ x }}1"},
  };
  for (const auto& [source, want] : cases) EXPECT_EQ(rendered(source), want) << source;
}

TEST(Template, WhiteSpaceAsInJinja) {
  EXPECT_EQ(rendered("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(rendered("a {%- if true -%} b {%- endif %} c"), "ab c");
  EXPECT_EQ(rendered("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(rendered("  {{ n }}  \n  {{- n -}}  \n x"), "  55x");
  EXPECT_EQ(rendered("  {# c #}\nx\r\ny{#- d -#} z"), "x\nyz");
}

TEST(Template, WhatIsNotSupportedIsRefusedByNameAndLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% include 'x' %}", "t:2: {% include %} is not supported in a chat template"},
      {"{% extends 'x' %}", "t:1: {% extends %} is not supported in a chat template"},
      {"\n\n{{ n | frobnicate }}", "t:3: the filter \"frobnicate\" is not supported"},
      {"{{ n is frobnicated }}", "t:1: the test \"frobnicated\" is not supported"},
      {"{{ s.encode() }}", "t:1: the method encode() is not supported"},
      {"{{ s | safe }}{{ 'a' + s | safe }}",
       "t:1: the filters safe and escape are supported only as the last of a {{ }}"},
      {"{{ lipsum() }}", "t:1: the function lipsum() is not supported"},
      {"{% for x in l recursive %}{% endfor %}", "t:1: recursive loops are not supported in a chat template"},
      {"{% if n %}", "t:1: the template ends, but {% endif %} is missing"},
      {"{{ n", "t:1: a {{ is not closed by }}"},
      {"{% break %}", "t:1: break outside of a loop"},
      {"{{ (n] }}", "t:1: unexpected ']', expected ')'"},
  };
  for (const auto& [source, want] : cases)
    EXPECT_EQ(refusal([&, source = source] { rendered(source); }), want);
}

TEST(Template, ErrorsWhileItRunsNameTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{{ zz.a }}", "t:2: 'zz' is undefined"},
      {"{{ raise_exception('no tools') }}", "t:1: the template refuses: no tools"},
      {"{{ l.append(4) }}", "t:1: access to attribute 'append' of 'list' object is unsafe"},
      {"{{ 'a' + 1 }}", "t:1: \"+\" cannot be applied to a str and a int"},
      {"{{ 1 / 0 }}", "t:1: a number is divided by zero"},
      {"{% for x in n %}{% endfor %}", "t:1: a int cannot be gone through"},
      {"{% set d.x = 1 %}", "t:1: d is no namespace; its members cannot be set"},
      {"{{ zz | tojson }}", "t:1: tojson: a Undefined has no JSON"},
  };
  for (const auto& [source, want] : cases)
    EXPECT_EQ(refusal([&, source = source] { rendered(source); }), want);
}

TEST(Template, AHostileTemplateMeetsALimit) {
  TemplateLimits small;
  small.steps = 20'000;
  small.text_bytes = 1 << 20;
  const std::string loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
  EXPECT_EQ(refusal([&] { rendered(loops, small); }), "t:1: the template takes more than 20000 steps");
  expect_in("bytes of text", refusal([&] { rendered("{{ 'x' * 100000000 }}", small); }));
  expect_in("bytes of text", refusal([&] {
              rendered(
                  "{% set ns = namespace(s='abc') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
                  "endfor %}",
                  small);
            }));
  expect_in("more than 20000 steps", refusal([&] { rendered("{{ [0] * 999999999 }}", small); }));
  expect_in("range() of more than 100000 numbers", refusal([&] { rendered("{{ range(10 ** 12) }}"); }));
  expect_in("nest deeper than 500 levels",
            refusal([&] { rendered("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"); }));
  expect_in("nests deeper than", refusal([&] {
              rendered("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}");
            }));
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  expect_in("nests deeper than", refusal([&] { rendered(sum + " }}"); }));
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if 1 %}";
  expect_in("nests deeper than", refusal([&] { rendered(blocks); }));
  expect_in(
      "lists and maps nest deeper than 100 levels", refusal([&] {
        rendered(
            "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}");
      }));
  expect_in("an integer is too large", refusal([&] { rendered("{{ 10 ** 99 }}"); }));
  expect_in("at most 1048576 are supported", refusal([&] { rendered(std::string(2 << 20, 'x')); }));
  // A namespace may hold itself; it goes away all the same.
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.self = ns %}{% set ns.list = [ns] %}ok"), "ok");
}

// A list that holds itself twice, over and over: short to write, and 2^60 items to walk through.
TEST(Template, WalkingThroughListsThatShareTheirItemsTakesSteps) {
  TemplateLimits small;
  small.steps = 200'000;
  for (const char* use :
       {"{{ ns.x == ns.y }}", "{{ ns.x != ns.y }}", "{{ ns.x < ns.y }}", "{{ [ns.x, ns.y]|sort }}",
        "{{ ns.x in [ns.y] }}", "{{ [ns.y].index(ns.x) }}", "{{ ns.x is eq ns.y }}", "{{ ns.x }}",
        "{{ ns.x|tojson }}", "{{ ns.x|string|length }}", "{{ 'a' ~ ns.x }}", "{{ '%s' % [ns.x] }}",
        "{{ [ns.x, ns.y]|max }}"}) {
    const std::string source =
        "{% set ns = namespace(x=[1],y=[1]) %}{% for i in range(60) %}{% set "
        "ns.x=[ns.x,ns.x] %}{% set ns.y=[ns.y,ns.y] %}{% endfor %}";
    EXPECT_EQ(refusal([&] { rendered(source + use, small); }),
              "t:1: the template takes more than 200000 steps")
        << use;
  }
  const std::string maps =
      "{% set ns = namespace(x={},y={}) %}{% for i in range(60) %}{% set ns.x={'a':ns.x,"
      "'b':ns.x} %}{% set ns.y={'a':ns.y,'b':ns.y} %}{% endfor %}{{ ns.x == ns.y }}";
  expect_in("more than 200000 steps", refusal([&] { rendered(maps, small); }));
  // Whether a tuple may be a key is known without a walk.
  EXPECT_EQ(rendered("{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x=(ns.x,ns.x) %}{% "
                     "endfor %}{% set d = {ns.x: 7} %}{{ d|length }}",
                     small),
            "1");
}

TEST(Template, LongNeedlesInLongTextsTakeTimeInProportionToTheirLengths) {
  EXPECT_EQ(rendered("{{ ('a'*1000000).strip('b'*1000000 ~ 'a') }}|"), "|");
  EXPECT_EQ(rendered("{{ ('éb'*200000 ~ 'x').strip('c'*1000000 ~ 'bé') }}"), "x");
  for (const char* needle : {"'a'*500000 ~ 'b'", "'b' ~ 'a'*500000", "'a'*250000 ~ 'b' ~ 'a'*250000"}) {
    const std::string set = "{% set t = 'a'*1000000 %}{% set n = " + std::string(needle) + " %}";
    EXPECT_EQ(rendered(set + "{{ t.find(n) }} {{ t.rfind(n) }} {{ n in t }} {{ t.count(n) }} "
                             "{{ t.split(n)|length }} {{ t.rsplit(n)|length }} {{ t|replace(n, '')|length }} "
                             "{{ t.partition(n)|length }} {{ t.rpartition(n)[2]|length }}"),
              "-1 -1 False 0 1 1 1000000 3 1000000");
  }
  TemplateLimits small;
  small.steps = 200'000;
  for (const char* use : {"t.find('ab')",   "t.rfind('ab')",  "'ab' in t",
                          "t.count('ab')",  "t.split('ab')",  "t|replace('ab', '')",
                          "t|upper",        "t|title",        "t.title()",
                          "t.swapcase()",   "t.isalpha()",    "t|length",
                          "t == u",         "t < u",          "t[5]",
                          "t|string",       "t.strip('a')",   "t|int",
                          "t is lower",     "t.splitlines()", "t|tojson",
                          "t.startswith(u)"}) {
    const std::string source =
        "{% set t = 'a'*100000 %}{% set u = t ~ '' %}{% for i in range(1000) %}{% set x = " +
        std::string(use) + " %}{% endfor %}";
    expect_in("more than 200000 steps", refusal([&] { rendered(source, small); }));
  }
}

TEST(Template, TheRenderingsOfOneConversationCountTogether) {
  TemplateLimits small;
  small.steps = 20'000;
  small.conversation_steps = 50'000;
  const ChatProgram program("{% for a in range(3000) %}{% endfor %}", "t", small);
  TemplateInput input, other;
  other.spend_with(input);
  for (int i = 0; i < 2; ++i) program.render(input, 0, false, 0);
  EXPECT_FALSE(input.is_spent(small));
  const auto render_more = [&] {
    for (int i = 0; i < 3; ++i) program.render(other, 0, false, 0);
  };
  EXPECT_EQ(refusal(render_more),
            "t:1: the template takes more than 50000 steps for the answers of one conversation");
  EXPECT_TRUE(input.is_spent(small));
}

TEST(Template, FromTheEndIsFoundAsPythonFindsIt) {
  EXPECT_EQ(rendered("{{ 'aaaa'.rfind('aa') }} {{ 'aaaaa'.rsplit('aa') }} {{ 'abcabc'.rpartition('bc') }} "
                     "{{ 'x'.rfind('') }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'ab'.rfind('abc') }} "
                     "{{ 'éaéa'.rfind('é') }} {{ 'ééa'[1:] }} {{ ('é'*100 ~ 'x')[100] }} "
                     "{{ ('aé'*100)[::-1][:3] }} {{ 'ab'.replace('', '-') }} {{ 'ab'.replace('', '-', 2) }}"),
            "2 ['a', '', ''] ('abca', 'bc', '') 1 ['a,b', 'c'] -1 2 éa x éaé -a-b- -a-b");
  EXPECT_EQ(rendered("{{ 'straße ǆ'.upper() }} {{ 'ΑΣ'.lower() }} {{ 'ﬁ ß'|title }} {{ 'Éé'.swapcase() }}"),
            "STRASSE Ǆ ας FI SS éÉ");
}

TEST(Template, WhatATemplateHoldsAtOneTimeIsBounded) {
  const std::string held = "the template holds values of more than 67108864 bytes at one time";
  for (const char* source :
       {"{{ ('a,'*10000000).split(',')|length }}", "{{ ('a'*10000000)|list|length }}",
        "{% set a='a'*1000000 %}{{ ''.join([a]*1000000)|length }}", "{{ [1]|batch(1000000000, 0)|list }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% set x=namespace() %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% macro m() %}{% endmacro %}{% endfor %}{% "
        "endfor %}",
        "{% set ns=namespace(l=[]) %}{% for i in range(200) %}{% set ns.l = ns.l + "
        "[range(100000)|map(attribute='q')] %}{% endfor %}"})
    expect_in(held, refusal([&] { rendered(source); }));
  // What is let go counts no more.
  EXPECT_EQ(rendered("{% for i in range(12) %}{% set a = ('a'*1000)*20000 %}{% endfor %}ok"), "ok");
}

TEST(Template, TextKnowsWhereItCameFrom) {
  TemplateInput input;
  input.add_message(value_from_json(R"({"role": "user", "content": "Ask"})", "m"));
  input.add_message(value_from_json(R"({"role": "assistant", "content": " Tell "})", "m"));
  const ChatProgram program(
      "<{{ messages[0].content | upper }}>{% for m in messages %}{{ '[' ~ m.role ~ ':' + m.content | trim "
      "}}]{% endfor %}",
      "t");
  const TracedText text = program.render(input, 2, false, 0);
  EXPECT_EQ(text.bytes(), "<ASK>[user:Ask][assistant:Tell]");
  std::string sources, turns;
  text.for_each_run([&](size_t begin, size_t end, TextMark mark) {
    sources.append(end - begin, mark.source < 0 ? '.' : static_cast<char>('0' + mark.source));
    turns.append(end - begin, mark.turn < 0 ? '.' : static_cast<char>('0' + mark.turn));
  });
  EXPECT_EQ(sources, ".000.......000............1111.")
      << "roles that are plain words belong to the template";
  EXPECT_EQ(turns, ".....00000000001111111111111111");
}

}  // namespace
}  // namespace pleat::data
