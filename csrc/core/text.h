// Formats numbers and lists for messages. It avoids C++ streams: their state belongs to the C++
// runtime that a library is linked with, and a process can hold more than one.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace convx {

class Text {
 public:
  Text& operator<<(std::string_view text) {
    text_ += text;
    return *this;
  }
  Text& operator<<(std::integral auto number) {
    text_ += std::to_string(number);
    return *this;
  }
  Text& operator<<(double number) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.17g", number);
    text_ += digits;
    return *this;
  }

  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

// Writes "[1, 2]"; write(item) writes each item.
template <typename Items, typename Write>
void write_list(Text& out, const Items& items, const Write& write) {
  std::string_view separator = "[";
  for (const auto& item : items) {
    out << separator;
    write(item);
    separator = ", ";
  }
  out << (separator == "[" ? "[]" : "]");
}

// "1 stage", "3 stages".
inline std::string count_text(int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

// Writes what write(item) writes for each item, once for all items that share it: "3 phases: a |
// 1 phase: b". Only the first few lines are written out.
template <typename Items, typename Write>
void write_counted(Text& out, const Items& items, std::string_view noun, const Write& write) {
  constexpr size_t kShown = 3;
  std::vector<std::pair<std::string, int64_t>> lines;
  for (const auto& item : items) {
    Text line;
    write(line, item);
    size_t i = 0;
    while (i < lines.size() && lines[i].first != line.str()) ++i;
    if (i == lines.size()) lines.emplace_back(line.str(), 0);
    ++lines[i].second;
  }
  int64_t left = static_cast<int64_t>(items.size());
  for (size_t i = 0; i < std::min(lines.size(), kShown); ++i) {
    const auto& [line, count] = lines[i];
    if (i > 0) out << " | ";
    if (items.size() > 1) out << count_text(count, noun) << ": ";
    out << line;
    left -= count;
  }
  if (left > 0) out << " | " << left << " more";
}

// Pieces of a geometry's line (core/plan.h). filters: stages of a ring of their own; 0: there is
// none.
inline void describe_stages(Text& out, int64_t stages, int64_t filters = 0) {
  out << ", ";
  if (filters > 0) out << stages << " + ";
  out << count_text(filters > 0 ? filters : stages, "stage");
}
inline void describe_split(Text& out, int64_t split) {
  if (split > 1) out << ", split-K " << split;
}

// A caller's list for a message: the first few values and, if there are more, their number.
template <typename Items>
std::string list_text(const Items& items) {
  constexpr size_t kShown = 8;
  Text out;
  out << "[";
  size_t index = 0;
  for (int64_t item : items) {
    if (index == kShown) {
      out << ", ... (" << items.size() << " values)";
      break;
    }
    out << (index++ ? ", " : "") << item;
  }
  out << "]";
  return out.str();
}

// A caller's word for a message: "'fp16'", shortened if it is long.
inline std::string word_text(std::string_view word) {
  constexpr size_t kShown = 60;
  const bool is_long = word.size() > kShown;
  return "'" + std::string(word.substr(0, kShown)) + (is_long ? "...'" : "'");
}

// Quotes text as a JSON string. The text is plain ASCII, in which only quotes and backslashes need
// an escape.
inline std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace convx
