// The one table of configuration keys. Parsing, validation, `explain`, the resolved table, canonical text and
// differences all read it; nothing else in the project spells a key path. A key is a row: how to read and
// write its field, what it means, what it may hold, and when it has an effect. Defaults are not repeated
// here: they are read from a default-made Config.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "config/config.h"

namespace pleat::config {

using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                           std::vector<std::string>>;

// A reason for a key to matter: `text` completes "applies when ...", `decided_by` names the keys looked at.
// `holds` must be safe on configs that have passed the range checks only.
// A configuration does not say how many ranks it will have: where that decides, `holds` is true and `ranks`
// names the number (rank_effect.h judges it once it is known); `anyway` says where the key matters on any number.
enum class RankCount : uint8_t { Any, One, Several };
struct Condition {
  std::string text;
  std::vector<std::string> decided_by;
  std::function<bool(const Config&)> holds;
  RankCount ranks = RankCount::Any;
  std::function<bool(const Config&)> anyway = {};
};

// What a run that goes on from its checkpoint may do with a key. SameModel keys make the model: a run started
// from weights takes them from there.
enum class OnResume : uint8_t {
  Free,        // may change
  MayGrow,     // may grow; less needs the flag
  WithFlag,    // changes how it trains: needs the flag
  SameTokens,  // may change as long as it gives the same tokens; others need the flag
  Never,       // the place in the data, or the state, would mean something else
  SameModel,   // it would be another model
};
inline constexpr char kAllowChange[] = "--allow-change";
std::string_view text_of(OnResume rule);  // completes "on resume: ..."

struct Key {
  std::string path;
  std::string meaning;
  std::function<Value(const Config&)> get;
  std::function<void(Config&, Value)> set;
  // False where the value stands for "unset" and must not appear in canonical text.
  std::function<bool(const Config&)> present = [](const Config&) { return true; };

  bool has_range = false;
  double low = 0, high = 0;
  bool low_open = false, high_open = false;
  std::vector<std::string> choices;
  std::vector<Condition> conditions;
  std::vector<std::string> related;
  bool line_breaks = false;        // text may hold newlines and tabs
  bool is_path = false;            // names a file or folder (config/run_files.h)
  std::optional<OnResume> resume;  // always there in schema()

  Key& range(double lo, double hi);
  Key& above(double lo, double hi);  // lo itself excluded
  Key& below(double lo, double hi);  // hi itself excluded
  Key& one_of(std::initializer_list<std::string> values);
  Key& when(Condition condition);
  Key& with_line_breaks();
  Key& see(std::initializer_list<std::string> keys);
  Key& names_file();
  Key& on_resume(OnResume rule);

  Value default_value() const;
  std::string type_name() const;
  std::string allowed() const;       // "one of ..." or "1 to 4096"; empty when anything of the type will do
  std::string applies_when() const;  // empty: always
  const Condition* unmet(const Config& config) const;
};

template <class Section, class Field>
Key make_key(std::string path, Section Config::*section, Field Section::*field, std::string meaning) {
  Key key;
  key.path = std::move(path);
  key.meaning = std::move(meaning);
  key.get = [=](const Config& config) { return Value(config.*section.*field); };
  key.set = [=](Config& config, Value value) { config.*section.*field = std::get<Field>(std::move(value)); };
  return key;
}

// All keys, sections together, in the order they are printed.
const std::vector<Key>& schema();
const Key* find_key(std::string_view path);
// True for a proper prefix of some key: "model", "optimizer.groups", "optimizer.groups.router".
bool is_section(std::string_view path);
// The key or section closest to a wrong name; never empty.
std::string nearest_key(std::string_view path);
const std::vector<std::string>& group_names();

struct Change {
  const Key* key;
  std::string before, after;
  std::string text() const;  // "key: before -> after"
};
// Every key whose value differs, in schema order.
std::vector<Change> changes(const Config& before, const Config& after);

// A value as TOML.
std::string to_text(const Value& value);

// The parts the table is put together from.
std::vector<Key> model_keys();
std::vector<Key> moe_keys();
std::vector<Key> optimizer_keys();
std::vector<Key> data_keys();  // [data] and [chat]
std::vector<Key> offload_keys();
std::vector<Key> run_keys();   // the rest, data_keys() and offload_keys() among them
std::vector<Key> parallel_keys();

// Conditions used by several sections.
Condition has_experts();
Condition has_dense_layers();
Condition has_mla();
Condition has_mtp_layers();
Condition has_shared_expert();
Condition has_validation_data();
Condition on_ranks(RankCount ranks);  // One or Several

bool balances_by(const Config& config, std::string_view type);
// Entries of moe.load_balancing that take a coefficient, in order.
std::vector<std::string> aux_types(const Config& config);

}  // namespace pleat::config
