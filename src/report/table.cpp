#include "report/table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace pleat::report {

size_t display_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  PLEAT_CHECK(!columns_.empty(), "a table needs columns");
}

void Table::add_row(std::vector<std::string> cells) {
  PLEAT_CHECK(cells.size() == columns_.size(), "{} cells for {} columns", cells.size(), columns_.size());
  for (std::string& cell : cells)
    for (char& c : cell)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  rows_.push_back(std::move(cells));
}

void Table::add_rule() { rows_.emplace_back(); }

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(display_width(column.title));
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  size_t total = 2 * (widths.size() - 1);
  for (const size_t width : widths) total += width;

  std::string out;
  const auto add_line = [&](auto&& cell_at) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_at(i);
      const std::string pad(widths[i] - display_width(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::Right ? pad + cell : cell + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  const std::string rule = std::string(total, '-') + "\n";
  add_line([&](size_t i) -> const std::string& { return columns_[i].title; });
  out += rule;
  for (const auto& row : rows_) {
    if (row.empty())
      out += rule;
    else
      add_line([&](size_t i) -> const std::string& { return row[i]; });
  }
  return out;
}

}  // namespace pleat::report
