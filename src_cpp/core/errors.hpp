#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace nexus {

// A buffer or file is not what its reader knows; names the field that differs.
class FormatError : public std::runtime_error {
  public:
    FormatError(std::string field, std::string expected, std::string found)
        : std::runtime_error(field + ": expected " + expected + ", found " + found),
          field_(std::move(field)),
          expected_(std::move(expected)),
          found_(std::move(found)) {}

    [[nodiscard]] const std::string& field() const noexcept { return field_; }
    [[nodiscard]] const std::string& expected() const noexcept { return expected_; }
    [[nodiscard]] const std::string& found() const noexcept { return found_; }

  private:
    std::string field_;
    std::string expected_;
    std::string found_;
};

// An arena has no room left for what was asked; nothing was changed.
class ArenaFull : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace nexus
