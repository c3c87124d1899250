#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace nexus {

// The kinds of cache operation, in the order of the Python enumeration.
enum class OpKind : std::uint8_t { kAppend, kSplice, kRepair, kDrop, kRepos };
constexpr std::int32_t kOpKinds = 5;

// One operation of a program: its words without the head, and the tokens it adds to the sequence.
struct OpWords {
    OpKind kind = OpKind::kRepos;
    std::span<const std::int32_t> payload;
    std::size_t n_tokens = 0;
};

// Stands before the indices of a repair that carries.
inline constexpr std::int32_t kCarry = -1;

// Reads a program in canonical form from its words. An operation is its kind, the number of words that
// follow, and these: the tokens of an append; anchor, bytes of the name, the name padded to whole words, and
// the tokens of a splice; the indices of a repair, behind kCarry where it carries; the bounds of a drop;
// nothing for a repos. Allocates nothing.
class OpReader {
  public:
    explicit OpReader(std::span<const std::int32_t> words) noexcept : rest_(words) {}

    [[nodiscard]] bool done() const noexcept { return rest_.empty(); }
    // The next operation; throws std::invalid_argument where the words are no canonical program.
    OpWords next();
    // Tokens of the operations read so far.
    [[nodiscard]] std::size_t n_tokens() const noexcept { return n_tokens_; }

  private:
    void check(const OpWords& op) const;
    void check_indices(std::span<const std::int32_t> indices) const;
    void check_ranges(std::span<const std::int32_t> bounds) const;

    std::span<const std::int32_t> rest_;
    std::size_t n_tokens_ = 0;
    bool after_append_ = false;
};

}  // namespace nexus
