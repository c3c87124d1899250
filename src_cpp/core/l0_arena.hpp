#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/contended_mutex.hpp"

namespace nexus {

// A fixed pool of live sequence slots, each with the exact tokens it holds. Finds the slot that shares the
// longest prefix with a request; a full pool gives up its least recently used slot that nobody has pinned.
// A hit allocates nothing. Any thread may call.
class alignas(kContentionLine) L0Arena {
  public:
    static constexpr int kNoSlot = -1;

    struct Match {
        int slot = kNoSlot;
        std::size_t length = 0;  // tokens shared with that slot
    };
    struct Bound {
        int slot = kNoSlot;
        bool evicted = false;  // it held another sequence, which is gone
    };
    struct Counters {
        std::size_t n_slots = 0;
        std::size_t live = 0;
        std::size_t pinned = 0;
        std::uint64_t hits = 0;
        std::uint64_t misses = 0;
        std::uint64_t matched_tokens = 0;
        std::uint64_t binds = 0;
        std::uint64_t releases = 0;
        std::uint64_t evictions = 0;
        std::uint64_t growths = 0;  // binds that had to enlarge their slot's token store
    };

    // Each slot has room for `reserved_tokens` from the start.
    explicit L0Arena(std::size_t n_slots = 32, std::size_t reserved_tokens = 4096);

    // The slot with the longest common prefix, ties to the lower slot; it counts as used now.
    Match match(std::span<const std::int32_t> tokens);
    // Says what a slot holds. Without a slot, takes an empty one or evicts; throws ArenaFull when all are
    // pinned. Binding a pinned slot is its owner's right.
    Bound bind(std::optional<int> slot, std::span<const std::int32_t> tokens);
    void pin(int slot);
    void unpin(int slot);
    // Empties a slot; throws std::invalid_argument while it is pinned.
    void release(int slot);

    [[nodiscard]] std::vector<std::int32_t> tokens(int slot) const;
    [[nodiscard]] Counters counters() const;
    // Throws std::logic_error when the bookkeeping contradicts itself.
    void check_integrity() const;

  private:
    struct Slot {
        std::vector<std::int32_t> tokens;
        std::uint64_t used_at = 0;
        std::uint32_t pins = 0;
        bool live = false;
    };

    [[nodiscard]] std::size_t checked(int slot) const;
    Slot& live_slot(int slot);
    [[nodiscard]] std::size_t free_or_oldest() const;

    mutable ContendedMutex lock_;
    // Guarded by the mutex.
    std::vector<Slot> slots_;
    std::uint64_t clock_ = 0;
    Counters counters_;
};

static_assert(alignof(L0Arena) == kContentionLine, "an arena starts on a line of its own");

// Number of leading tokens that are equal.
std::size_t common_prefix(std::span<const std::int32_t> left, std::span<const std::int32_t> right) noexcept;

}  // namespace nexus
