// Column tables for the terminal, used by every command, so that they all look alike.
#pragma once

#include <string>
#include <vector>

namespace pleat::report {

enum class Align { Left, Right };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::Left;
  };
  explicit Table(std::vector<Column> columns);

  // One cell per column. Control characters in a cell are shown as '?', so that text from a file cannot
  // drive the terminal.
  void add_row(std::vector<std::string> cells);
  void add_rule();  // a line across, e.g. above a total

  // Header, rule, rows; two spaces between columns, no space at the end of a line, newline after each line.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

// Columns a UTF-8 text takes on the terminal, one per code point.
size_t display_width(const std::string& text);

}  // namespace pleat::report
