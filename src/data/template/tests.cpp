// What stands behind "is".
#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"

namespace pleat::data::jinja {
namespace {

const Value& operand(Evaluator& e, CallArguments& arguments) {
  const Value* given = arguments.get(0, {});
  if (given == nullptr) e.fail("this test needs something to compare with");
  return *given;
}

bool remainder_is(Evaluator& e, const Value& value, int64_t divisor, int64_t wanted) {
  if (divisor == 0) e.fail("a number is divided by zero");
  if (const double* d = value.real()) {
    const auto whole = static_cast<double>(static_cast<int64_t>(*d));
    if (whole != *d) return false;
    const int64_t m = static_cast<int64_t>(*d) % divisor;
    return (m < 0 ? m + divisor : m) == wanted;
  }
  const int64_t i = e.integer(value, "even, odd and divisibleby");
  if (divisor == -1) return wanted == 0;
  const int64_t m = i % divisor;
  return (m != 0 && (m < 0) != (divisor < 0) ? m + divisor : m) == wanted;
}

bool same_as(Evaluator& e, const Value& a, const Value& b) {
  if (a.held().index() != b.held().index()) return false;
  if (a.is_none()) return true;
  if (a.text() != nullptr) return a.text() == b.text();
  return a.list() != nullptr ? a.list() == b.list() : e.equal(a, b);
}

bool is_cased_as(Evaluator& e, const Value& v, CharacterClass wanted) {
  const TracedText text = e.str(v);
  e.charge_letters(2 * text.size());
  return all_of(text.bytes(), wanted);
}

bool is_sequence(const Value& v) {
  return v.is_undefined() || v.text() != nullptr || v.dict() != nullptr ||
         (v.list() != nullptr && (v.list()->kind == ListKind::List || v.list()->kind == ListKind::Tuple ||
                                  v.list()->kind == ListKind::Range));
}

struct NamedTest {
  std::string_view name;
  Test run;
};

#define PLEAT_TEST [](Evaluator & e, const Value& v, CallArguments& a) -> bool
#define PLEAT_PLAIN_TEST [](Evaluator&, const Value& v, CallArguments&) -> bool

constexpr std::array kTests = {NamedTest{"boolean", PLEAT_PLAIN_TEST{return v.boolean() != nullptr;
}  // namespace
}  // namespace pleat::data::jinja
, NamedTest{"callable", PLEAT_PLAIN_TEST{return v.function() != nullptr || v.is_undefined();
}
}
, NamedTest{"defined", PLEAT_PLAIN_TEST{return !v.is_undefined();
}
}
, NamedTest{"divisibleby", PLEAT_TEST{return remainder_is(e, v, e.integer(operand(e, a), "divisibleby"), 0);
}
}
, NamedTest{"eq", PLEAT_TEST{return e.equal(v, operand(e, a));
}
}
, NamedTest{"equalto", PLEAT_TEST{return e.equal(v, operand(e, a));
}
}
, NamedTest{"==", PLEAT_TEST{return e.equal(v, operand(e, a));
}
}
, NamedTest{"even", PLEAT_TEST{return (void)a, remainder_is(e, v, 2, 0);
}
}
, NamedTest{"false", PLEAT_PLAIN_TEST{return v.boolean() != nullptr && !*v.boolean();
}
}
, NamedTest{"filter", PLEAT_TEST{return (void)a, is_filter(e.text(v, "filter").bytes());
}
}
, NamedTest{"float", PLEAT_PLAIN_TEST{return v.real() != nullptr;
}
}
, NamedTest{"ge", PLEAT_TEST{return e.less(operand(e, a), v) || e.equal(v, operand(e, a));
}
}
, NamedTest{">=", PLEAT_TEST{return e.less(operand(e, a), v) || e.equal(v, operand(e, a));
}
}
, NamedTest{"greaterthan", PLEAT_TEST{return e.less(operand(e, a), v);
}
}
, NamedTest{"gt", PLEAT_TEST{return e.less(operand(e, a), v);
}
}
, NamedTest{">", PLEAT_TEST{return e.less(operand(e, a), v);
}
}
, NamedTest{"in", PLEAT_TEST{return e.contains(operand(e, a), v);
}
}
, NamedTest{"integer", PLEAT_PLAIN_TEST{return v.integer() != nullptr;
}
}
, NamedTest{"iterable",
            PLEAT_PLAIN_TEST{return v.is_undefined() || v.text() != nullptr || v.list() != nullptr ||
                                    v.dict() != nullptr || v.loop() != nullptr;
}
}
, NamedTest{"le", PLEAT_TEST{return e.less(v, operand(e, a)) || e.equal(v, operand(e, a));
}
}
, NamedTest{"<=", PLEAT_TEST{return e.less(v, operand(e, a)) || e.equal(v, operand(e, a));
}
}
, NamedTest{"lessthan", PLEAT_TEST{return e.less(v, operand(e, a));
}
}
, NamedTest{"lower", PLEAT_TEST{return (void)a, is_cased_as(e, v, CharacterClass::Lower);
}
}
, NamedTest{"lt", PLEAT_TEST{return e.less(v, operand(e, a));
}
}
, NamedTest{"<", PLEAT_TEST{return e.less(v, operand(e, a));
}
}
, NamedTest{"mapping", PLEAT_PLAIN_TEST{return v.dict() != nullptr;
}
}
, NamedTest{"ne", PLEAT_TEST{return !e.equal(v, operand(e, a));
}
}
, NamedTest{"!=", PLEAT_TEST{return !e.equal(v, operand(e, a));
}
}
, NamedTest{"none", PLEAT_PLAIN_TEST{return v.is_none();
}
}
, NamedTest{"number",
            PLEAT_PLAIN_TEST{return v.integer() != nullptr || v.real() != nullptr || v.boolean() != nullptr;
}
}
, NamedTest{"odd", PLEAT_TEST{return (void)a, remainder_is(e, v, 2, 1);
}
}
, NamedTest{"sameas", PLEAT_TEST{return same_as(e, v, operand(e, a));
}
}
, NamedTest{"sequence", PLEAT_PLAIN_TEST{return is_sequence(v);
}
}
, NamedTest{"string", PLEAT_PLAIN_TEST{return v.text() != nullptr;
}
}
, NamedTest{"test", PLEAT_TEST{return (void)a, is_test(e.text(v, "test").bytes());
}
}
, NamedTest{"true", PLEAT_PLAIN_TEST{return v.boolean() != nullptr && *v.boolean();
}
}
, NamedTest{"undefined", PLEAT_PLAIN_TEST{return v.is_undefined();
}
}
, NamedTest{"upper", PLEAT_TEST{return (void)a, is_cased_as(e, v, CharacterClass::Upper);
}
}
,
}
;

#undef PLEAT_TEST
#undef PLEAT_PLAIN_TEST

}  // namespace

Test find_test(std::string_view name) {
  const auto found =
      std::find_if(kTests.begin(), kTests.end(), [&](const NamedTest& t) { return t.name == name; });
  return found == kTests.end() ? nullptr : found->run;
}

}  // namespace pleat::data::jinja
