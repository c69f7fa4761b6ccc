// The arguments of every kernel by name, made from program/ops.def.
//
//   const signature::rmsnorm::Forward<Arg> args(call.args);   // args.x, args.w, args.y, args.rstd
//
// Item is what the list holds: a use of a stage (program::Use), an argument of a call (kernels::Arg), anything
// that follows the same order. A field is a reference into that list, a field of a list argument a span of it;
// the list must outlive the struct.
#pragma once

#include <span>

#include "base/error.h"
#include "program/program.h"

namespace pleat::program::signature {

// Hands out the items of a list in the order of the fields.
template <class Item>
class Cursor {
 public:
  Cursor(std::span<const Item> items, KernelKind kernel, Phase phase)
      : items_(items), num_arguments_(arguments_of(kernel, phase).size()) {
    if (!takes(arguments_of(kernel, phase), items.size()))
      base::fail_with(base::ExitCode::Internal, "{} {} takes {} arguments, has {}", name_of(kernel),
                      name_of(phase), num_arguments_, items.size());
  }
  const Item& next() { return items_[at_++]; }
  std::span<const Item> next_list() {
    const size_t count = items_.size() - num_arguments_ + 1, begin = at_;
    at_ += count;
    return items_.subspan(begin, count);
  }

 private:
  std::span<const Item> items_;
  size_t num_arguments_, at_ = 0;
};

// What every row has, for templates over rows.
template <class Item>
struct Row {
  using item = Item;
  Row(std::span<const Item> items, KernelKind kernel, Phase phase) : cursor(items, kernel, phase) {}
  Cursor<Item> cursor;
};

#define IN(x) const Item& x = this->cursor.next();
#define IN_IF(x) const Item& x = this->cursor.next();
#define IN_LIST(x) std::span<const Item> x = this->cursor.next_list();
#define OUT(x) const Item& x = this->cursor.next();
#define OUT_IF(x) const Item& x = this->cursor.next();
#define SUM(x) const Item& x = this->cursor.next();
#define SUM_IF(x) const Item& x = this->cursor.next();
#define CHANGE(x) const Item& x = this->cursor.next();
#define CHANGE_LIST(x) std::span<const Item> x = this->cursor.next_list();
#define HOST(x) const Item& x = this->cursor.next();
#define SCALE(x) const Item& x = this->cursor.next();
#define SCALE_OUT(x) const Item& x = this->cursor.next();
#define SCALE_OUT_IF(x) const Item& x = this->cursor.next();
#define ROWS(x) const Item& x = this->cursor.next();
#define ROWS_IF(x) const Item& x = this->cursor.next();
#define PLEAT_PHASE(kernel, phase, fields)                                                              \
  namespace kernel {                                                                                    \
  template <class Item>                                                                                 \
  struct phase : Row<Item> {                                                                            \
    explicit phase(std::span<const Item> items) : Row<Item>(items, KernelKind::kernel, Phase::phase) {} \
    fields                                                                                              \
  };                                                                                                    \
  }
#include "program/ops.def"
#undef IN
#undef IN_IF
#undef IN_LIST
#undef OUT
#undef OUT_IF
#undef SUM
#undef SUM_IF
#undef CHANGE
#undef CHANGE_LIST
#undef HOST
#undef SCALE
#undef SCALE_OUT
#undef SCALE_OUT_IF
#undef ROWS
#undef ROWS_IF

}  // namespace pleat::program::signature
